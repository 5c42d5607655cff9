"""What the coordinator is told, what it orders, and what its log holds: events, commands, manifests, graphs, settings.

Plain data, no decisions but those about one value (retention, restart strategies). Everybody in the coordinator and in
``actors`` may import it.
"""
