"""Spark beside the actors: sessions, the two hand-offs of a DataFrame's partitions, and results back as a DataFrame.

In: DataFrames of any session. Out: splits of a source, staged files or leased blocks; ``spark_bridge`` is the public
face. PySpark and ray are imported inside functions, so that plans which only name a frame load without them.
"""
