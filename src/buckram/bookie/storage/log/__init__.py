"""Group commit and the blocks at the end of the log live here, with the record of where the log is durable; sealed
files are in `segments`.
"""
