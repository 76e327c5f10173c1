"""Which Redis keys a lock has: a key that people can predict and share, and its siblings in the same cluster slot.

The lock itself is ``dibs:{namespace:name}``. What stands in braces decides the slot, so nothing a name contains may
close them: braces, ``%``, spaces and everything outside printable ASCII are percent-encoded, and so is ``:`` in a
namespace, where it would end. Distinct names therefore never share a key, and every key can be read back.

A *template* such as ``billing:lock:{name}`` names keys of other programs instead, byte for byte.
"""

from __future__ import annotations

import itertools
import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from dibs.errors import Misuse
from dibs.stores.redis.port.topology import slot, tagged

READABLE = "!\"#$&'()*+,/:;<=>?@[\\]^`|"
"""Stays as it is in a name, besides letters, digits and ``_.-~``."""

SIBLINGS = ("fence", "line", "tickets", "evicted", "record", "ends", "parts")
"""What the keys beside that of the lock end with, in the order of `Keys`. Versions of dibs that run side by side share
them, so they stay as they are, whatever the fields are called."""

_SPECIAL_IN_A_GLOB = re.compile(r"([*?\[\]\\^])")


class RedisKeys(NamedTuple):
    """The keys of one lock, in the order the scripts take them."""

    lock: bytes
    """The value of the holder; there only while the lock is held."""
    fence: bytes
    """The last fence given out; it has no ttl."""
    queue: bytes
    """The waiters, a sorted set: token by moment of arrival."""
    tickets: bytes
    """The waiters, a hash: token to how it is woken, until when it counts, and its process."""
    evicted: bytes
    """The last eviction of a holder."""
    record: bytes
    """The record that a holder left."""
    ends: bytes
    """The holders of shares, a sorted set: token by the end of its lease. Only while several hold it."""
    shares: bytes
    """The holders of shares, a hash: token to its fence and its process."""


class RedisNaming:
    """How the names of one namespace become keys, and keys become names."""

    def __init__(self, namespace: str, template: str | None = None) -> None:
        self.raw = template is not None
        if template is None:
            before, after = f"dibs:{{{encoded(namespace, READABLE.replace(':', ''))}:", "}"
        else:
            before, after = _parts(template, namespace)
        self._before, self._after = before, after
        self.keys = lru_cache(maxsize=4096)(self._keys)

    def key(self, name: str) -> str:
        """The key of the lock itself."""
        return self._before + (name if self.raw else encoded(name, READABLE)) + self._after

    def name(self, key: bytes) -> str | None:
        """The name whose lock is *key*; None if it is none of ours."""
        text = key.decode("utf-8", "surrogateescape")
        if not (text.startswith(self._before) and text.endswith(self._after)):
            return None
        name = text[len(self._before) : len(text) - len(self._after)]
        name = name if self.raw else unquote(name)
        return name if name and self.key(name) == text else None

    def pattern(self, prefix: str) -> bytes:
        """A glob for the keys of all names that begin with *prefix*."""
        before = self._before + (prefix if self.raw else encoded(prefix, READABLE))
        return (escaped(before) + "*" + escaped(self._after)).encode()

    def records(self, prefix: str) -> bytes:
        """A glob for the keys of the records of all names that begin with *prefix*, and perhaps of others."""
        return b"*:dibs:record" if self.raw else self.pattern(prefix) + b":record"

    def _keys(self, name: str) -> RedisKeys:
        key = self.key(name)
        stem = beside(key) + ":dibs" if self.raw else key
        return RedisKeys(key.encode(), *(f"{stem}:{what}".encode() for what in SIBLINGS))


def encoded(text: str, readable: str) -> str:
    """*text* without anything that could be mistaken for the frame around it."""
    return quote(text, safe=readable)


def escaped(text: str) -> str:
    """*text* as a glob that matches nothing else."""
    return _SPECIAL_IN_A_GLOB.sub(r"\\\1", text)


def beside(key: str) -> str:
    """A stem for further keys in the slot of *key*, a key that we did not choose."""
    if tagged(key.encode()) is not None:  # it begins every key that begins with *key*, so it decides their slot too
        return key
    if "}" not in key:
        return f"{{{key}}}"
    # Its braces cannot be used as they are: '}x' has none that count. So some number in braces stands before it.
    wanted = slot(key.encode())
    tag = next(f"{{{number}}}" for number in itertools.count() if slot(b"%d" % number) == wanted)
    return f"{tag}:{key}"


def _parts(template: str, namespace: str) -> tuple[str, str]:
    """What stands before and after the name."""
    if template.count("{name}") != 1:
        raise Misuse("key says where in the key the name stands: {name}, exactly once")
    if "{namespace}" not in template and namespace != "default":
        raise Misuse(f"key, with namespace={namespace!r}, must also say where {{namespace}} stands")
    before, _, after = template.partition("{name}")
    return before.replace("{namespace}", namespace), after.replace("{namespace}", namespace)
