"""Ray and Java as they are found: connecting, calls with callbacks, whether a plan fits, the schema of blocks.

``environment`` and ``calls`` import ray, ``fitting`` and ``blocks`` do not. ``job`` and ``spark`` use it.
"""
