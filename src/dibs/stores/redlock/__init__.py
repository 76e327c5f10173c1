"""A majority of independent Redis servers, with fences that a majority has confirmed.

To read it, in this order: `vote` (who has won), `scripts` (what a node does), `attempt` (one round), `grant` (rounds
until it is decided), `store`, `renewal`, `members`, `member_scripts` and `admission` (which nodes vote), `clocks`,
`broadcast`, `view` (what people see), `options`, `connect`, `reseed` (after a majority lost its memory).
"""
