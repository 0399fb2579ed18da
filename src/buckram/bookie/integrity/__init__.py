"""A bookie's search for what it lacks or has damaged: the scrub, the end of limbo, the watch for a slow disk.

What it finds is marked for healing. Not here: the copying (`healing`), reading files (`bookie/storage`).
"""
