"""One connection to a server, in either colour: it sends, it hears, and it says when the server has closed it."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from dibs.errors import Misuse
from dibs.ports.http.message import Conversation
from dibs.ports.http.source import Endpoint, Tls


class Wire(Protocol):
    """A connection and the conversation on it."""

    conversation: Conversation

    async def send(self, data: bytes, until: float) -> None:
        """Send *data*; `TimeoutError` if it is not on its way at the moment *until*, else `OSError`."""

    async def hear(self, until: float) -> None:
        """Feed the conversation with what comes next; `TimeoutError` at the moment *until*, `OSError` at the end."""

    def is_stale(self) -> bool:
        """Whether there is news although nothing was asked: the server closed the connection."""

    def close(self) -> None:
        """Close it; whoever hears just now is told."""

    def forked(self) -> None:
        """Forget it, in a forked child, without a word to the server."""


class Dial(Protocol):
    """Opens wires."""

    async def __call__(self, endpoint: Endpoint, until: float) -> Wire:
        """Connect to *endpoint*; `TimeoutError` at the moment *until*, else `OSError`."""


Clock = Callable[[], float]


@lru_cache(maxsize=16)
def tls_context(tls: Tls) -> ssl.SSLContext:
    """What *tls* says, as the ssl module takes it."""
    try:
        context = ssl.create_default_context(cafile=tls.ca or None)
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key or None)
    except (OSError, ValueError) as exc:  # a file that is not there, or is no certificate
        raise Misuse(f"TLS with ca={tls.ca!r}, cert={tls.cert!r}, key={tls.key!r}: {exc}") from exc
    context.set_alpn_protocols(["http/1.1"])
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
