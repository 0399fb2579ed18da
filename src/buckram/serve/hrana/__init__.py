"""Databases over the network: libSQL's Hrana protocol over HTTP, so that its clients work unchanged.

`server.py:DatabaseServer` serves many databases at one address. On a follower a request is sent on to the leader.
"""
