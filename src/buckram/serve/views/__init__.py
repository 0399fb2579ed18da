"""What commands and servers show of a cluster, as values that go into JSON: their keys stay as they are.

Everything here reads, and changes nothing. Not here: how it is printed (`cli`), how it is sent (`gateway`).
"""
