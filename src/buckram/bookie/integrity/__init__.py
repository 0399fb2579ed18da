"""A bookie looks here for what it lacks or has damaged (scrub, end of limbo, slow disk) and marks it for healing;
the copying itself is in `healing`, the reading of files in `bookie/storage`.
"""
