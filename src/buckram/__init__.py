"""Buckram: replicated, durable logs; a BookKeeper in Python."""
