"""Names: two that differ in anything are two locks, and a prefix is text and no pattern."""

from __future__ import annotations

import pytest

from dibs.errors import Misuse
from dibs.testing.contract.suite import Kind
from dibs.testing.contract.world import STEP, World

HOSTILE = [
    "a",
    "A",
    "a ",
    " a",
    "a\n",
    "a\x00",
    "a\x00b",
    "\x00",
    "\x7f",
    "a:b",
    "a/b",
    "a/../b",
    "../a",
    "a%b",
    "a_b",
    "axb",
    "a*b",
    "a?b",
    "a[b]",
    "a[^x]",
    "a\\b",
    "a'b",
    'a"b',
    "a;--b",
    "{}",
    "{a}",
    "}{a",
    "{a}{b}",
    "{",
    "%s",
    "%00",
    "a%00",
    "é",
    "e\u0301",
    "ß",
    "ss",
    "İ",
    "i",
    "🔒",
    "🔓",
    "\U0010ffff",
    "\uffff",
    "\u202e",
    "None",
    "null",
    "0",
    "x" * 1000,
    "x" * 999 + "y",
    "🔒" * 250,
]
"""Names that some store has once confused, cut, folded or read as something else."""

SPACES = [("a:b", "c"), ("a", "b:c"), ("a/b", "c"), ("a", "b/c"), ("ab", "c"), ("a", "bc"), ("a\x00b", "c")]
"""Namespace and name: together they read the same in a careless store."""


class Names(Kind):
    """Distinct names never share a lock."""

    async def test_every_name_is_a_lock_of_its_own(self, world: World) -> None:
        client = world.client()
        fences = {name: (await client.lock(name, ttl=60).acquire(timeout=0)).fence for name in HOSTILE}
        for name in HOSTILE:
            holder = (await client.show(name)).holder
            assert holder is not None
            assert (holder.name, holder.fence) == (name, fences[name])
        listed = {holder.name: holder.fence for holder in await client.holders()}
        assert listed == fences

    async def test_no_name_is_refused_by_the_hold_of_another(self, world: World) -> None:
        ours, theirs = world.client(), world.client()
        for name in HOSTILE[::2]:
            await ours.lock(name, ttl=60).acquire(timeout=0)
        free = [name for name in HOSTILE if await theirs.lock(name).try_acquire() is not None]
        assert free == HOSTILE[1::2]

    async def test_a_name_that_no_store_can_keep_is_refused_by_all(self, world: World) -> None:
        for name in ("", "x" * 1001, "🔒" * 251, "x" * 10_000, "\ud800"):
            with pytest.raises(Misuse):
                world.client().lock(name)

    async def test_namespaces_have_nothing_to_do_with_each_other(self, world: World) -> None:
        leases = []
        for space, name in SPACES:
            client = world.client(space)
            leases.append(await client.lock(name, ttl=60).acquire(timeout=0))
            assert (name, leases[-1].fence) in [(holder.name, holder.fence) for holder in await client.holders()]
        mine = await world.client("a").holders()
        assert [holder.name for holder in mine] == sorted(name for space, name in SPACES if space == "a")
        for (space, name), lease in zip(SPACES, leases, strict=True):
            assert not await world.client(f"not {space}").evict(name, fence=lease.fence)
            await lease.renew()

    async def test_a_prefix_is_text_and_no_pattern(self, world: World) -> None:
        client, names = world.client(), [name for name in HOSTILE if len(name) < 10]
        for name in names:
            await client.lock(name, ttl=60).acquire(timeout=0)
        for prefix in {name[:length] for name in names for length in (1, 2)}:
            found = [holder.name for holder in await client.holders(prefix)]
            assert found == sorted(name for name in names if name.startswith(prefix)), repr(prefix)

    async def test_notes_come_back_as_they_were_given(self, world: World) -> None:
        client = world.client()
        for note in ("", 'it\'s "quoted"', "a\nb", "🔒", "{note}", "%s", "\x00", "x" * 1000):
            lease = await client.lock(world.name(), note=note).acquire(timeout=0)
            holder = (await world.store.show(lease.name, STEP)).holder
            assert holder is not None
            assert holder.note == note
