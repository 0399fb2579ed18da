"""Operations for administrators over HTTP: the cluster, maintenance, namespaces, tokens and grants, browser sessions.

Not here: streams, objects and databases.
"""
