"""Streams: endless, named, ordered logs made of ledgers (docs/tutorial/streams.md). See `client.namespace(name)`."""
