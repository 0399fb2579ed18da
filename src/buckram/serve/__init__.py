"""Servers for the protocols of others: HTTP, libSQL's, Hadoop's, that of Apache's operators, Prometheus's.

`gateway` serves all of a cluster over HTTP and takes `hrana` (databases) and `webhdfs` (files) along; all three stand
on `http`. `admin` is the HTTP API of a bookie, `exporter` the metrics of a cluster, `views` what they show as JSON.
"""
