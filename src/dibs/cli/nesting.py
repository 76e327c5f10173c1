"""Whether the process that asks for a lock already runs under it: then it would wait for itself, for ever."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dibs.errors import Misuse

if TYPE_CHECKING:
    from dibs import Client


def refuse_to_wait_for_ourselves(client: Client, name: str) -> None:
    """Raise `Misuse` if a `dibs run` above us holds *name* for us.

    The environment alone does not say so: a daemon that was once started by `dibs run` keeps it for ever, and may
    take the lock. So the store is asked whether that very grant still holds it. Its fence is enough to know it by:
    the same name elsewhere, in another store or namespace, has another one.
    """
    if os.environ.get("DIBS_NAME") != name:
        return
    fence = _fence_above(name)
    holder = client.show(name).holder if fence else None
    if holder is not None and holder.fence == fence:
        raise Misuse(
            f"this command already runs under {name!r}, which a dibs run above it holds with fence {fence}: it would "
            "wait for itself; leave this dibs out, or take another name"
        )


def _fence_above(name: str) -> int | None:
    from dibs.core.handover import from_text  # noqa: PLC0415 - rarely needed

    try:
        claim, _ = from_text(os.environ.get("DIBS_TOKEN", ""))
    except Misuse:
        return None
    return claim.fence if claim.name == name else None
