"""SQL text as far as it can be understood without a database, and the state of one caller's transaction."""
