"""`buckram up`: a cluster on this machine with its directory, certificates and background threads.

It imports cli/shared, cli/gateway.py and the janitor of cli/stream.
"""
