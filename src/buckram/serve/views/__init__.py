"""JSON values that commands and servers show of a cluster; their keys are stable.

Everything here reads, and changes nothing. Not here: how it is printed (`cli`), how it is sent (`gateway`).
"""
