"""Replicators live here: they take marked ledgers and copy fragments to other bookies; who marks ledgers is in
`healing/auditing`.
"""
