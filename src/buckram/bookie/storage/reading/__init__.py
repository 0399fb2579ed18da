"""Reading of a store: entries are found and their bytes fetched, and ledgers are listed. Nothing here writes."""
