"""How replies are parsed: by hiredis, piece by piece, in threads and in event loops alike."""

from __future__ import annotations

from typing import Any

import hiredis

NOT_YET = object()
"""The answer of a parser while a reply is incomplete."""

CHUNK = 16_384
"""The most bytes that one call reads."""


def new_parser() -> Any:
    """A parser for one connection: `feed` takes what was read, `gets` returns the next reply, or `NOT_YET`."""
    return hiredis.Reader(notEnoughData=NOT_YET)  # Any: its types know no bytearray
