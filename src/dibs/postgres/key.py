"""Which advisory lock is meant: that of a name of ours, or one that SQL of others takes."""

from __future__ import annotations

from typing import NamedTuple

from dibs.core.checks import checked_name, shown
from dibs.errors import Misuse
from dibs.ports.db.session import Session
from dibs.stores.postgres.advisory.key import advisory_key

DEFAULT_NAMESPACE = "default"


class Hashtext(NamedTuple):
    """The key that the server's ``hashtext`` has for a text."""

    text: str


def hashtext(text: str) -> Hashtext:
    """Mean the lock of SQL such as ``pg_advisory_xact_lock(hashtext('nightly'))``, for the *key* of `xact_lock`.

    The server computes it, since its function differs between versions. It has 32 bits: different texts may share a
    lock, which names of dibs do not.
    """
    return Hashtext(checked_name(text, "text"))


class Target(NamedTuple):
    """One advisory lock, and under what name its row stands."""

    key: int
    namespace: str
    name: str


async def target(conn: Session, name: object, key: object, namespace: object) -> Target:
    """The lock that the arguments of a call mean. Only a `Hashtext` has to be asked for."""
    if (name is None) == (key is None):
        raise Misuse("give a name, or the key of a lock that others take: one of the two")
    if isinstance(name, str):
        space = checked_name(namespace, "namespace")
        return Target(advisory_key(space, checked_name(name)), space, name)
    return _of_others(await _number(conn, key if name is None else name))


async def _number(conn: Session, key: object) -> int:
    if isinstance(key, Hashtext):
        found = await conn.rows("SELECT CAST(hashtext(CAST(:content AS text)) AS bigint)", content=key.text)
        return int(found[0][0])
    if isinstance(key, bool) or not isinstance(key, int) or not -(2**63) <= key < 2**63:
        raise Misuse(f"key={shown(key)}: it is a name, a whole number that fits a bigint, or hashtext(…)")
    return key


def _of_others(key: int) -> Target:
    """A key without a name: no namespace of ours is empty, so its row is nobody else's."""
    return Target(key, "", f"bigint {key}")
