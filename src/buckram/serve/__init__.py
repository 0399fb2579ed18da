"""Servers for protocols of other software: HTTP, libSQL's, Hadoop's, that of Apache's operators, Prometheus's.

`gateway` serves all of a cluster over HTTP, with `hrana` for databases and `webhdfs` for files; all three stand on
`http`. `admin` is the HTTP API of a bookie, `cluster_exporter.py` serves the metrics of a cluster, and `json_views` is
what all of them and the commands show as JSON.
"""
