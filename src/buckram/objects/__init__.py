"""Objects: immutable bytes under names, whole or not at all. `client.objects(namespace)` gives them.

`Objects` (`objects/objects.py`) is the handle; their index is a replicated machine (`core/objects/index.py`), their
bytes are in ledgers (`objects/data.py`). docs/tutorial/objects.md shows their use.
"""
