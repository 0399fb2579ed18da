"""Child processes: bookies, ZooKeeper and etcd, and the Java that some of them need."""
