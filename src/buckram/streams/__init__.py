"""Streams: endless, named, ordered logs made of ledgers. `client.namespace(name)` gives their handle.

docs/tutorial/streams.md shows their use.
"""
