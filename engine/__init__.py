"""Pure dataflow of one process: flows, plans, tasks, drivers, operators, sources and sinks. No Ray, no coordinator."""
