"""Adds, reads, fencing, admission and server-side copies of entries are carried out here; what is stored is in
`bookie/storage`.
"""
