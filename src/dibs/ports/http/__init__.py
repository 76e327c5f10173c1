"""Requests to a store behind HTTP, for etcd and Consul.

To read it, in this order: `source` (the URL), `client` (which server is asked), `server` (its connections), `wire` (one
connection) in `wire_blocking` and `wire_async`, `message` (bytes).
"""
