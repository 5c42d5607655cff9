"""Sinks: what ends a pipeline and makes its rows visible in two phases."""
