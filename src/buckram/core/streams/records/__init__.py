"""Records are the bytes of one entry: batch, compression, producers, schemas and remembered positions; what a
stream's head says of its segments is in core/streams/metadata.
"""
