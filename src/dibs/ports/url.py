"""Reads the URL of a store that has a server: strictly, before any I/O, and with no piece of a password in any error.

Where a URL is malformed, nobody can tell which part of it is the password. So an error never quotes it, and is never
raised from the error of a parser, which does.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Mapping
from typing import NamedTuple, NoReturn
from urllib.parse import unquote

from dibs.errors import Misuse

ESCAPES = "in a user name, a password or a value write %40 for @, %2F for /, %3F for ?, %23 for # and %25 for %"

_HOST = re.compile(r"[\w.-]+")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")


class Host(NamedTuple):
    """One server; or the path of a socket, which begins with a slash."""

    name: str
    port: int
    """0 if the URL names none."""

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{name}:{self.port}" if self.port else name


class Url(NamedTuple):
    """The parts of a URL, decoded."""

    scheme: str
    login: bool
    """Whether it names a user or a password."""
    user: str
    password: str
    hosts: tuple[Host, ...]
    path: str
    raw_path: str
    """As it was written: a %2F is no slash in it."""
    query: Mapping[str, str]
    authority: str
    """As it was written: user, password and hosts."""

    def __repr__(self) -> str:
        return f"<Url {self.shown}>"

    @property
    def shown(self) -> str:
        """What errors may say of it."""
        return f"{self.scheme}://{'…@' if self.login else ''}{','.join(map(str, self.hosts))}"

    def refuse(self, problem: str) -> NoReturn:
        """Raise `Misuse`."""
        raise Misuse(f"{self.shown}: {problem}")

    def refuse_unknown(self, known: Collection[str], why: str = "") -> None:
        """Raise `Misuse`, without quoting it, if an option is none of the *known*; *why* says more of them."""
        for name in self.query.keys() - set(known):
            from difflib import get_close_matches  # noqa: PLC0415 - for who makes a mistake

            meant = "".join(f"; did you mean {near}?" for near in get_close_matches(name, known, 1))
            self.refuse(f"an option is not known{meant or ';'} known here: {', '.join(sorted(known)) or 'none'}{why}")


def read(url: str, *, needs_host: bool = True, sockets: bool = False) -> Url:
    """Read *url*, ``scheme://user:password@host1:port,host2/path?option=value``."""
    scheme, _, rest = url.partition(":")
    scheme = scheme.lower()
    if (problem := _malformed(rest)) is not None:
        raise Misuse(f"this {scheme}: URL {problem}")
    authority, path, query = _split(rest[2:])
    userinfo, at, servers = authority.rpartition("@")
    user, _, password = userinfo.partition(":")
    hosts = [_host(text, sockets) for text in servers.split(",")] if servers else []
    options = [_option(text) for text in query.split("&")] if query is not None else []
    parts = [unquote(user), unquote(password), unquote(path)]
    if at and not userinfo.strip(":"):
        raise Misuse(f"this {scheme}: URL has nothing before its @; name a user or a password, or drop the @")
    if None in hosts or (needs_host and not hosts):
        raise Misuse(
            f"this {scheme}: URL names no host, or a host or port that cannot be one; hosts are written as in "
            f"{scheme}://host1,10.0.0.2:7000,[::1]:7000, with ports from 1 to 65535; {ESCAPES}"
        )
    if None in options or len(options) > len({option[0] for option in options if option}):
        raise Misuse(f"this {scheme}: URL has an option without a value, or twice; write ?option=value&other=value")
    found = dict(option for option in options if option)
    known = tuple(host for host in hosts if host)
    return Url(scheme, bool(at), parts[0], parts[1], known, parts[2], path, found, authority)


def _malformed(rest: str) -> str | None:
    authority, path, query = _split(rest[2:])
    problems = (
        (not rest.startswith("//"), "has no // after its colon, as in scheme://host"),
        (" " in rest or not rest.isprintable(), "contains a space or a control character; write %20 for a space"),
        ("#" in rest, "contains a #, but there is nothing that a fragment could mean"),
        ("@" in path or "@" in (query or ""), "has an @ behind its host"),
        (
            _BAD_ESCAPE.search(rest) or "\ufffd" in unquote(rest),
            "contains a % that does not begin the code of a character in UTF-8",
        ),
        (not unquote(authority + path).isprintable(), "contains a control character, written with %"),
    )
    return next((f"{problem}; {ESCAPES}" for found, problem in problems if found), None)


def _split(rest: str) -> tuple[str, str, str | None]:
    """Authority, path and query."""
    before, question, query = rest.partition("?")
    authority, slash, path = before.partition("/")
    return authority, slash + path, query if question else None


def _host(text: str, sockets: bool) -> Host | None:
    """None if it is none."""
    if text.startswith("["):
        name, bracket, port = text[1:].partition("]")
        name = unquote(name)
        fine = bool(bracket) and _is_ipv6(name) and (not port or port.startswith(":"))
        colon, port = port[:1], port[1:]
    else:
        name, colon, port = text.partition(":")
        name = unquote(name)
        fine = bool(_HOST.fullmatch(name)) or (sockets and name.startswith("/"))
    if colon and not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65_536):
        return None
    return Host(name, int(port) if colon else 0) if fine else None


def _is_ipv6(name: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6, name.partition("%")[0])
    except OSError:
        return False
    return True


def _option(text: str) -> tuple[str, str] | None:
    name, _, value = text.replace("+", " ").partition("=")
    return (unquote(name), unquote(value)) if name and value else None
