"""Objects: immutable bytes under names, whole or not at all. `client.objects(namespace)` gives them.

`Objects` (`state/objects/objects.py`) is the handle; their index is a replicated machine (`core/objects/index.py`),
their bytes are in ledgers (`state/objects/writing.py`). docs/tutorial/objects.md shows their use.
"""
