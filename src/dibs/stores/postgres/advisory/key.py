"""The advisory lock that stands for a name: part of the protocol between versions, so it never changes."""

from __future__ import annotations

import hashlib


def advisory_key(namespace: str, name: str) -> int:
    """The 64-bit key of *name* in *namespace*, as PostgreSQL's bigint.

    The first 8 bytes, most significant first, of the SHA-256 of the length of the namespace (8 bytes, the same way),
    the namespace and the name, in UTF-8. The length keeps "a" + "b:c" and "a:b" + "c" apart whatever they contain.
    `hashtext` would have 32 bits, in which some of 200,000 names collide, and it may change between versions.
    """
    space = namespace.encode()
    digest = hashlib.sha256(len(space).to_bytes(8, "big") + space + name.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
