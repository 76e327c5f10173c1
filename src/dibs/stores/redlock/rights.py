"""What a user of each node of a Redlock has to be allowed, read off the scripts."""

from __future__ import annotations

from dibs.stores.redis.rights import SENT, commands_of, rules
from dibs.stores.redlock import member_scripts, scripts


def redlock() -> str:
    """The rules of a user, as ACL SETUSER takes them."""
    return rules(SENT | {"script|load"} | commands_of(scripts, member_scripts))
