"""SQLite as the table engine of one replica: its thread, files, readers, statements and captured commits.

It knows nothing of the log.
"""
