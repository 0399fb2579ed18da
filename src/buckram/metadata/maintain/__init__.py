"""Work on a whole metadata store: backup, restore and its acceptance, check-up, migration to another store.

Not here: single records (`metadata/records`).
"""
