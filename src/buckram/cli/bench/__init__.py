"""`buckram bench`: load generators, profiles and the lower bounds of a machine.

It imports cli/shared only. Not here: the standard suite, which is the folder `bench` beside `src`.
"""
