"""How the Consul store reaches its agent: `agent`, on `dibs.ports.http`."""
