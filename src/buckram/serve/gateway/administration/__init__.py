"""The operations of administrators live here: the cluster, maintenance, namespaces, tokens and grants, browser
sessions; not streams, objects or databases.
"""
