"""Commands on a cluster as a whole: its metadata and their backups, its health, and its usage.

The nouns are `cluster`, `metadata`, `status`, `top`, `doctor`, `usage` and `upgrade-check`. It imports cli/shared and
cli/autorecovery.py.
"""
