"""Entries are found and their bytes fetched here, and ledgers are listed; nothing here writes."""
