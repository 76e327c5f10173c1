"""How the etcd store reaches its servers: `gateway`, on `dibs.ports.http`."""
