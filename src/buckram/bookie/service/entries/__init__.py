"""Requests about entries: adds, reads, fencing, admission and server-side copies are carried out here.

Not here: what is stored (`bookie/storage`).
"""
