"""How several Redis servers are asked at the same time.

To read it, in this order: `nodes` (what a round of questions is); `nodes_blocking`, `round_blocking`,
`channel_blocking` and `subscriber_blocking` for threads; `nodes_async` and `channel_async` for an event loop.
"""
