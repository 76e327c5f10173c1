"""Commands as bytes: what is sent to a Redis server, made once where it can be and joined where it cannot."""

from __future__ import annotations

import hashlib

Argument = str | bytes | int


class Script:
    """A Lua script. It is sent by its digest, and in full to a server that does not know it."""

    def __init__(self, text: str) -> None:
        self.text = "\n".join(
            line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("--")
        )
        body = self.text.encode()
        sha = hashlib.sha1(body, usedforsecurity=False).hexdigest()
        self._by_digest = bulk("EVALSHA") + bulk(sha)
        self._in_full = bulk("EVAL") + bulk(body)

    def head(self, keys: tuple[bytes, ...] | list[bytes], arguments: int) -> bytes:
        """The command up to its arguments; *arguments* says how many follow."""
        parts = [b"*%d\r\n" % (3 + len(keys) + arguments), self._by_digest, bulk(len(keys)), *map(bulk, keys)]
        return b"".join(parts)

    def call(self, keys: tuple[bytes, ...] | list[bytes], *arguments: Argument) -> bytes:
        """The whole command."""
        return self.head(keys, len(arguments)) + b"".join(map(bulk, arguments))

    def in_full(self, command: bytes) -> bytes:
        """*command*, a call of this script, for a server that has lost it."""
        return command.replace(self._by_digest, self._in_full, 1)

    def using(self, old: str, new: str) -> Script:
        """The same script with another command in it."""
        return Script(self.text.replace(old, new))


def bulk(argument: Argument) -> bytes:
    """One word of a command, as the protocol writes it."""
    if isinstance(argument, int):
        argument = b"%d" % argument
    elif isinstance(argument, str):
        argument = argument.encode()
    return b"$%d\r\n%b\r\n" % (len(argument), argument)


def command(*arguments: Argument) -> bytes:
    """A whole command that is no script."""
    return b"*%d\r\n" % len(arguments) + b"".join(map(bulk, arguments))
