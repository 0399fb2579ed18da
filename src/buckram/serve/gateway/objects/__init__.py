"""The operations on objects over HTTP live here: get, put, list, uploads in parts, removal of many; files for Hadoop
are in serve/webhdfs.
"""
