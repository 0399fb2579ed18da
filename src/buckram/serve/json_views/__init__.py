"""What commands and servers show of a cluster as JSON, with stable keys.

Nothing here listens or decides who may see it.
"""
