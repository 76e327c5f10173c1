"""One connection to a server, blocking or async: it sends, hears, and tells whether the server has closed it."""

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
        """Send *data*; `TimeoutError` if it is not on its way by the moment *until*, `OSError` if it cannot be sent."""

    async def hear(self, until: float) -> None:
        """Feed the conversation with what comes next; `TimeoutError` at the moment *until*, `OSError` at the end."""

    def is_stale(self) -> bool:
        """Whether the server closed the connection, or sent something although nothing was asked."""

    def close(self) -> None:
        """Close the connection; a call of `hear` in another thread or task raises."""

    def forked(self) -> None:
        """Forget the connection in a forked child, and send nothing: it is the parent's."""


class Dial(Protocol):
    """Opens connections to the endpoints of one store."""

    async def __call__(self, endpoint: Endpoint, until: float) -> Wire:
        """Connect to *endpoint*; `TimeoutError` at the moment *until*, `OSError` if it cannot be reached."""


Clock = Callable[[], float]


@lru_cache(maxsize=16)
def tls_context(tls: Tls) -> ssl.SSLContext:
    """The options *tls*, as the ssl module takes them."""
    try:
        context = ssl.create_default_context(cafile=tls.ca or None)
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key or None)
    except (OSError, ValueError) as exc:  # a file that does not exist, or is no certificate
        raise Misuse(f"TLS with ca={tls.ca!r}, cert={tls.cert!r}, key={tls.key!r}: {exc}") from exc
    context.set_alpn_protocols(["http/1.1"])
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
