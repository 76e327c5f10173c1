"""Elections: one candidate leads at a time, on top of a lock.

To read it, in this order: `election` (campaign, resign, who leads), `term` (one leadership), `block` (the work of a
leader), `watch` (news of leaders), `timings` (how long a change may take).
"""
