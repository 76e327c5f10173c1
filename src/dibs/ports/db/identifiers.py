"""What may stand in a statement as the name of a table or column."""

from __future__ import annotations

import re

from dibs.errors import Misuse


def identifier(name: object, what: str) -> str:
    """Return *name* if it is one: plain or in double quotes, perhaps after a schema; *what* is for the error."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Misuse(f'{what}={name!r}: it is a name such as account, app.account or "Account"')
    return name


_ONE = r'(?:[A-Za-z_]\w*|"[\w $-]+")'
_NAME = re.compile(rf"{_ONE}(?:\.{_ONE})?", re.ASCII)
