"""The driver's way to files on several gateways: the failover relay, its HTTP, Java's trust store, Hadoop's settings.

Not here: the gateway's side (`serve/webhdfs/`).
"""
