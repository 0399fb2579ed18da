"""ZooKeeper: sessions, keys, and Apache's layout on them."""
