"""The HTTP API of a bookie under the paths of Apache's bookies, so that their operators' tools work unchanged."""
