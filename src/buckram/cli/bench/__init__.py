"""`buckram bench`: load generators, profiles and the machine's lower bounds; the standard suite is the folder
`bench` beside `src`; imports cli/shared only.
"""
