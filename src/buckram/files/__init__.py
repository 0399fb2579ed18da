"""Objects as a file system: `buckram://NAMESPACE/NAME` for fsspec, and so for pandas, pyarrow, Dask and others.

Needs the extra `fsspec`. `BuckramFileSystem` (`files/filesystem.py`) is what fsspec finds by the name of the protocol.
"""
