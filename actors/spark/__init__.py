"""Spark beside the actors: sessions, the two hand-offs of a DataFrame's partitions, and results back as a DataFrame."""
