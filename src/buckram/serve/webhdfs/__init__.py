"""Files over HTTP, as Hadoop's client and so Spark speak it: WebHDFS on the objects of namespaces.

A gateway serves it below /webhdfs/v1; `server.py` is the entry. The first part of a path is the namespace.
Not here: objects and their directories (`state/objects/`), HTTP itself (`serve/http/`). Needs the extra `serve`.
"""
