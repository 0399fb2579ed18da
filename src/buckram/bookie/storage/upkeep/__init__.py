"""Background work on an open store lives here: next log files, sealing, checkpoints, compaction and verification;
what a bookie deletes is decided in `bookie/garbage`.
"""
