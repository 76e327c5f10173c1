"""The one logger of dibs, called "dibs"."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


def logger() -> logging.Logger:
    """The logger "dibs". `logging` is imported here, when there is something to say: it takes 4 ms."""
    import logging  # noqa: PLC0415 - see above

    return logging.getLogger("dibs")
