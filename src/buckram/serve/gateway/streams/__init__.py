"""The operations on streams, their records and ledgers over HTTP live here, with tails, shared writers and the
formats of bodies; not those on objects and databases.
"""
