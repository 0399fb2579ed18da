"""Values of a cluster as JSON with stable keys, as commands and servers show them.

Nothing here listens or decides who may see it.
"""
