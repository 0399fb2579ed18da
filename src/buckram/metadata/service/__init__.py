"""Metadata through bookies that serve it: buckram:// URIs, for processes that are not trusted with the store itself."""
