"""The driver's way to files on several gateways lives here: the failover relay, its HTTP, Java's trust store, and
the settings of Hadoop's client; the gateway's side is serve/webhdfs.
"""
