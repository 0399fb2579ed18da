"""etcd: its gRPC gateway over HTTP, sessions as leases, and keys with depth so that children can be listed."""
