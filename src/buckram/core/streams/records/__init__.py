"""The bytes of one entry of a stream: batch, records, compression, producers, schemas and remembered positions.

Not here: what a stream's head says of its segments (`core/streams/metadata`).
"""
