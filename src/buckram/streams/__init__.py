"""Streams: endless, named, ordered logs made of ledgers. The way in is `client.namespace(name)`; docs/streams.md."""
