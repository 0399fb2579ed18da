"""What concerns a cluster as a whole: its metadata and their backups (`cluster`, `metadata`), and its health
(`status`, `top`, `doctor`, `usage`, `upgrade-check`); imports cli/shared and cli/autorecovery.py.
"""
