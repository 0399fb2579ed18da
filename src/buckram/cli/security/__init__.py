"""Commands on tokens, permissions, certificates, keys, Apache's logins and the audit trail, also as bookies write it.

It imports cli/shared and the files of cli/up.
"""
