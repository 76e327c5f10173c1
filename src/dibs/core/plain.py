"""Which values stand in a name as they are, and what to write instead of the others.

A value may if equal values have the same text everywhere, and different values have different texts: text, whole
numbers, bool, None, UUID, date, paths, and lists and tuples of these. The text of an object is its address in this
process; a float or a Decimal has several texts for one number, a datetime for one moment; sets and dicts have no order
of their own; and how an Enum is written depends on the version of Python.
"""

from __future__ import annotations

import functools
from typing import Any

PLAIN = frozenset({str, int, bool, type(None)})
"""Types that stand in a template, and need no closer look."""

MORE = frozenset({("uuid", "UUID"), ("datetime", "date"), ("pathlib", "PosixPath"), ("pathlib", "PurePosixPath")})
"""Others, and those made from them, by module and name: a process that has such a value has imported it, not we."""

SEQUENCES = (list, tuple)

LIKELY = ("id", "pk", "uuid", "key", "slug", "name")
"""Attributes that tell what an object is, the likeliest first."""


ADVICE = (
    ({"Enum"}, "write {{{0}.value}} or {{{0}.name}}"),
    ({"float", "Decimal", "complex"}, "1.0 and 1.00 are one number; say which digits count, as in {{{0}:.2f}}"),
    ({"datetime"}, "one moment has several texts; say which part counts, as in {{{0}:%Y-%m-%d}}"),
    ({"time"}, "one moment has several texts; say which part counts, as in {{{0}:%H.%M}}"),
    ({"timedelta"}, "say which part counts, as in {{{0}.days}} or {{{0}.seconds}}"),
    (
        {"set", "frozenset", "dict"},
        "it has no order of its own; pass a sorted list, or name one value, as in {{{0}[key]}}",
    ),
    ({"bytes", "bytearray"}, "pass text, or write {{{0}!r}}"),
    ({"list", "tuple"}, "one of its items is not written the same in every process; pass what identifies that item"),
    ({"str", "int"}, "write {{{0}!s}}, if its text is the same in every process"),
)
"""What to write instead of a value of a type, or of one made from it."""


def is_plain(value: Any) -> bool:
    """Whether *value* stands in a name as it is."""
    kind: Any = type(value)
    return _is_plain_type(kind) or (kind in SEQUENCES and all(map(is_plain, value)))


@functools.lru_cache(maxsize=256)
def _is_plain_type(kind: type) -> bool:
    if kind in PLAIN:
        return True
    names = {(each.__module__.partition(".")[0], each.__name__) for each in kind.__mro__}
    if names & MORE:
        return ("datetime", "datetime") not in names
    base = str if issubclass(kind, str) else int if issubclass(kind, int) else None
    return base is not None and all(getattr(kind, each) is getattr(base, each) for each in _TEXTS)


_TEXTS = ("__str__", "__repr__", "__format__")


def ends_by_itself(value: Any) -> bool:
    """Whether the text of such a value shows where it ends: it has a fixed length, or brackets."""
    kind = type(value)
    return kind in SEQUENCES or not {each.__name__ for each in kind.__mro__}.isdisjoint(("UUID", "date"))


def advice(name: str, value: Any) -> str:
    """What to write instead of the field called *name*."""
    kinds = {each.__name__ for each in type(value).__mro__}
    for some, text in ADVICE:
        if kinds & some:
            return text.format(name)
    if hasattr(value, "__index__"):
        return f"write {{{name}:d}}"
    known = [each for each in LIKELY if each in getattr(value, "__dict__", ()) or hasattr(type(value), each)]
    return f"write what identifies it, such as {{{name}.{known[0] if known else 'id'}}}"
