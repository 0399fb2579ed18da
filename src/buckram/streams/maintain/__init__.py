"""Maintenance of streams: compaction, retention, offload and export, imports, forks, deletion, and the janitor."""
