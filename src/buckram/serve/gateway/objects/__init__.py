"""Operations on objects over HTTP: get, put, list, uploads in parts, removal of many.

Not here: files for Hadoop (`serve/webhdfs/`).
"""
