"""The Hrana protocol of libSQL, versions 1 to 3 in JSON: values, requests, conditions, results. No I/O.

The specifications are in tursodatabase/libsql, docs/HRANA_3_SPEC.md.
"""
