"""What of HTTP an idempotent request needs: the key in its header, what it asks for, and its answer as bytes.

Follows draft-ietf-httpapi-idempotency-key-header: the value is a string of RFC 8941, in quotes. Most clients send the
bare key, so that is taken too, and means the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import NamedTuple

from dibs.guards.asgi import Scope

Headers = list[tuple[bytes, bytes]]

LONGEST_KEY = 255

_QUOTED = re.compile(rb'"((?:[ !#-\[\]-~]|\\["\\])*)"(?:[ ]*;[ ]*[a-z*][-a-z0-9_.*]*(?:=[!-:<-~]+)?)*')
"""A string, and parameters, which mean nothing here."""

_BARE = re.compile(rb"[A-Za-z0-9_.~:/+=@!#$%&*|-]+")


class Response(NamedTuple):
    """A response, as it is kept and sent again."""

    status: int
    headers: Headers
    body: bytes | None
    """None: it was not kept."""

    def to_bytes(self) -> bytes:
        """Write it: a line of JSON, and after it the body."""
        headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in self.headers]
        head = {"status": self.status, "headers": headers, "kept": self.body is not None}
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + (self.body or b"")


def from_bytes(data: bytes) -> Response:
    """Read it."""
    head, _, body = data.partition(b"\n")
    facts = json.loads(head)
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in facts["headers"]]
    return Response(facts["status"], headers, body if facts["kept"] else None)


def values_of(scope: Scope, name: bytes) -> list[bytes]:
    """All values of a header."""
    return [value for key, value in scope["headers"] if key.lower() == name]


def key_in(values: Iterable[bytes]) -> str | None:
    """The key; None if the header is not one string, or is there more than once."""
    [value, *others] = [each.strip(b" \t") for each in values]
    quoted = _QUOTED.fullmatch(value)
    if others or not (quoted or _BARE.fullmatch(value)):
        return None
    key = re.sub(rb"\\(.)", rb"\1", quoted[1]) if quoted else value
    return key.decode("ascii") if 0 < len(key) <= LONGEST_KEY else None


def digest(*parts: bytes) -> str:
    """One text for many parts, none of which can be mistaken for two."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(b"%d:" % len(part) + part)
    return whole.hexdigest()


def asked_for(scope: Scope, body: bytes) -> str:
    """What a request is about: method, path, query and body, byte for byte, where the server tells the path so."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()  # in which /a%2Fb is not /a/b
    return digest(scope["method"].encode(), path, scope.get("query_string", b""), body)


def problem(status: int, detail: str, *more: tuple[bytes, bytes], **facts: object) -> Response:
    """A problem document (RFC 9457)."""
    document = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **facts}
    headers = [(b"content-type", b"application/problem+json"), (b"cache-control", b"no-store"), *more]
    return Response(status, headers, json.dumps(document).encode())
