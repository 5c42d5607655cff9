"""Files as the engine sees them: from an address to a path, which data files a folder holds, what is recorded of them,
what is durable, and buckets as one more file system.

In: addresses of users. Out: file systems and paths of pyarrow, and errors that name the file. ``object_store`` is the
one module that knows obstore. Sources, sinks, the plan, and all of ``actors`` that stores something use it.
"""
