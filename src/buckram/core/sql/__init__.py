"""What can be known of SQL text without a database, and the state of one caller's transaction."""
