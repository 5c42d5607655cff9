"""How stored bytes and rows are proven: the one checksum, digests of rows, digests and counts by order lane.

In: bytes or batches. Out: numbers whose sums do not depend on how rows were cut. ``checksums`` is imported by the
coordinator and by everything that stores or sends; the rest by sources, sinks, exchanges and the audit.
"""
