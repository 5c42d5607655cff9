"""The indexes that come with the package: a table in memory, Parquet files, a table of a database.

``engine.flow.index`` is their public face; the protocol that they implement is in ``operators.index_protocol``.
"""
