"""The parts that reading, writing and maintaining streams share: metadata, ledgers, ownership, recovery, locations."""
