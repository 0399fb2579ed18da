"""History writes sealed segments to files outside the cluster, lists them in an Iceberg table and compares them with
their stream; what reads such files is in streams/read and streams/shared, and who asks for an offload is
streams/maintain/offload.py.
"""
