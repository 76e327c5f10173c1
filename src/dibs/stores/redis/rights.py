"""What a user of Redis or Valkey has to be allowed so that a client of ours can do all that it does.

The commands of our scripts are read off the scripts, and docs/stores/ shows what stands here: nothing is listed twice.
"""

from __future__ import annotations

import re
from types import ModuleType

from dibs.stores.redis import records, scripts, shares
from dibs.stores.redis.port.command import Script

SENT = {"eval", "evalsha", "ping", "subscribe"}
"""What is sent as it is, besides scripts."""


def redis() -> str:
    """The rules of a user, as ACL SETUSER takes them, for all that is done on one server."""
    ours = commands_of(scripts, shares, records)
    return rules(SENT | {"info", "scan"} | ours)  # INFO only warns, and SCAN lists holders and records


def cluster() -> str:
    """What is needed on the nodes of a cluster besides."""
    return " ".join(f"+{each}" for each in ("cluster|slots", "asking", "spublish", "ssubscribe", "sunsubscribe"))


def sentinel() -> str:
    """The rules of a user of the sentinels."""
    return "+sentinel|get-master-addr-by-name"


def rules(commands: set[str]) -> str:
    """Allow *commands*, on our keys and channels."""
    return " ".join(["~dibs:*", "&dibs:*", *(f"+{command}" for command in sorted(commands))])


def commands_of(*modules: ModuleType) -> set[str]:
    """The commands that the scripts of *modules* run."""
    found_scripts = [thing for module in modules for thing in vars(module).values() if isinstance(thing, Script)]
    return {found.lower() for script in found_scripts for found in re.findall(r"call\('([A-Z]+)'", script.text)}
