"""JSON values that commands and servers show of a cluster live here, with stable keys; nothing here listens or
decides who may see them.
"""
