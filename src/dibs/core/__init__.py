"""The algorithms of locking, written once as async code against a store and a runtime.

To read them, in this order: `lock` (what is locked), `acquiring` (one call of acquire), `turns` (the queue inside a
client), `lease` (one grant), `loss` (whether and when it was lost), `keeper` and `schedule` (renewals), `client` (what
holds it all together). Small things beside: `checks`, `deadline`, `connecting`, `entered`, `guarded`, `handover`,
`locked`; and `recording`, what a holder leaves for those who come later,
with `idempotent`, `call` and `outcome`, which stand on it.

On top of locks stand elections (`election`, `leading`, `term`, `work`, `leaders`, `timings`) and what runs once per
slot (`once`, `claiming`, `history`, `slots`).
"""
