"""A tiny client that speaks RESP2, so that tests look at a server with other eyes than the code they test."""

from __future__ import annotations

import socket
import ssl
from typing import IO, Any, Self

TIMEOUT = 10.0


class RespError(Exception):
    """What the server answers with a minus."""


class Resp:
    """One connection; replies are text, numbers, None, and lists of these."""

    def __init__(
        self, address: tuple[str, int], *, tls: ssl.SSLContext | None = None, timeout: float = TIMEOUT
    ) -> None:
        sock = socket.create_connection(address, timeout)
        self._socket = sock if tls is None else tls.wrap_socket(sock, server_hostname=address[0])
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()
        self._socket.close()

    def __call__(self, *words: str | bytes | float) -> Any:
        """Send a command and return its reply."""
        self._socket.sendall(encode(words))
        return self.read()

    def read(self) -> Any:
        """The next reply, or message of a subscription."""
        return read(self._file)


def encode(words: tuple[str | bytes | float, ...]) -> bytes:
    """A command on the wire."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def read(file: IO[bytes]) -> Any:
    """One reply; `RespError` if it is an error, inside a list as a value."""
    line = file.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("the server has closed the connection")
    kind, rest = line[:1], line[1:-2].decode("utf-8", "surrogateescape")
    match kind:
        case b"+":
            return rest
        case b"-":
            raise RespError(rest)
        case b":":
            return int(rest)
        case b"$":
            return None if rest == "-1" else file.read(int(rest) + 2)[:-2].decode("utf-8", "surrogateescape")
        case _:
            return None if rest == "-1" else [_item(file) for _ in range(int(rest))]


def _item(file: IO[bytes]) -> Any:
    try:
        return read(file)
    except RespError as error:
        return error
