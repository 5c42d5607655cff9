"""What all rooms of the engine name: identities, errors, elements of a stream, schemas, and the protocols of operators
and sources.

In: nothing but pyarrow and numpy. Out: types. ``identity`` is the one module that the coordinator imports, too, so it
stands on the standard library alone; ``errors`` and ``shown`` likewise. Everybody may import this room, and it imports
no other.
"""
