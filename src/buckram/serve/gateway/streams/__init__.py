"""Operations on streams, their records and ledgers over HTTP, with tails, shared writers and the formats of bodies.

Not here: objects and databases.
"""
