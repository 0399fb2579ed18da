"""Administration as a subject of the simulator: an administrator takes bookies out and brings them back, puts bookies
into maintenance, moves copies and metadata, restores backups, in any order, and is killed at any step."""
