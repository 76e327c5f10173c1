"""Versions over HTTP: a strong ETag goes out, comes back as If-Match, and a write that was overtaken gets 412.

Each helper answers with the status to send, or with None to go on. The write itself names the version as well
(`Versioned.update`): between the helper's look and the write somebody else may come.
"""

from __future__ import annotations

import re

from dibs.errors import Misuse

BAD_REQUEST = 400
PRECONDITION_FAILED = 412
PRECONDITION_REQUIRED = 428


def etag(version: int | str) -> str:
    """The version as a strong ETag: ``"7"``."""
    text = str(version)
    if isinstance(version, bool) or not re.fullmatch(_INSIDE, text):
        raise Misuse(f"version={version!r}: an ETag has printable characters without quotes and spaces, and not none")
    return f'"{text}"'


def if_match(header: str | None, current: str | None, *, required: bool = True) -> int | None:
    """Whether a request with this If-Match may change what has the ETag *current*; None is for what is not there.

    412: it has another by now. 428: the header is missing, and *required*. 400: the header is none. A weak tag
    (``W/"7"``) never matches: it says alike, not equal.
    """
    if header is None:
        return PRECONDITION_REQUIRED if required else None
    tags = _tags(header)
    if tags is None:
        return BAD_REQUEST
    matches = current is not None and _strong(current) and ("*" in tags or current in tags)
    return None if matches else PRECONDITION_FAILED


def if_none_match(header: str | None, current: str | None, *, required: bool = True) -> int | None:
    """Whether a request with this If-None-Match may create, or write over, what has the ETag *current*.

    ``*`` lets it only create. Here a weak tag counts as the strong one: what is alike is there.
    """
    if header is None:
        return PRECONDITION_REQUIRED if required else None
    tags = _tags(header)
    if tags is None:
        return BAD_REQUEST
    known = {tag.removeprefix("W/") for tag in tags}
    there = current is not None and ("*" in known or current.removeprefix("W/") in known)
    return PRECONDITION_FAILED if there else None


def version_in(header: str) -> int | None:
    """The version that an If-Match names, for `Versioned.update`; None unless it is one strong tag with a number."""
    found = re.fullmatch(r'\s*"(-?[0-9]{1,19})"\s*', header, re.ASCII)
    return int(found[1]) if found else None


_INSIDE = r"[\x21\x23-\x7e\x80-\xff]+"
_TAG = rf'(?:W/)?"(?:{_INSIDE})?"'
_LIST = re.compile(rf"[ \t,]*{_TAG}(?:[ \t]*,[ \t,]*{_TAG})*[ \t,]*")


def _tags(header: str) -> set[str] | None:
    """The tags of a header, ``*`` among them; None if it is malformed."""
    if header.strip(" \t") == "*":
        return {"*"}
    return set(re.findall(_TAG, header)) if _LIST.fullmatch(header) else None


def _strong(tag: str) -> bool:
    return not tag.startswith("W/")
