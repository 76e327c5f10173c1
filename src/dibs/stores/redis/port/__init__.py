"""How the Redis store, and Redlock, reach a server.

To read it, in this order: `source` (the URL), `open` (puts the pieces together), `router` and `topology` (which server
has the key), `command`, `parser`, `dial`, then a server: `server_blocking` for threads; `server_async`,
`pipeline_async` and `protocol_async` for an event loop. How a waiter is told that it is its turn: `subscriptions`,
`hints`, `subscriber_blocking`, `subscriber_async`. `errors` says what replies mean.
"""
