"""Lives of gateways: several of them on one cluster, and clients that speak HTTP to them and lose their answers.

Gateways are the real ones, with the real parser of HTTP: `serving.py` puts them on the simulated network instead of
sockets, and `asking.py` is the client's side. Streams: `appending.py`, `following.py`, `paging.py`; files of Hadoop:
`filing.py`, judged by `file_model.py`. Nothing of the code under test says what is right.
"""
