"""Names made of arguments: equal values make one name in every process, others another, or it is said what to write."""

from __future__ import annotations

import ast
import contextlib
import datetime
import enum
import itertools
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pytest

import dibs
import dibs.aio
from dibs.asgi import IdempotencyKeyMiddleware
from dibs.core.idempotent.outcome import fingerprint_of
from dibs.core.locked import Called
from dibs.core.template import Template
from dibs.errors import KeyReused, Misuse

UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Invoice:
    """An object without a text of its own."""

    def __init__(self, number: int) -> None:
        self.id = number


@dataclass
class Item:
    sku: str
    pk: int = 3


class Point(NamedTuple):
    x: float


class Color(enum.Enum):
    RED = "red"


class Word(str, enum.Enum):  # noqa: UP042 - it is about this one
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Number(enum.StrEnum):
    ONE = "1"


class UserId(int):
    """A type of its own for the same texts."""


class Loud(str):
    def __str__(self) -> str:
        return self.upper()


class Index:
    def __index__(self) -> int:
        return 3


def made(template: str, **arguments: Any) -> str:
    return Template(template, arguments, "work").filled(arguments)[0]


PLAIN = [
    (7, "7"),
    (-7, "-7"),
    ("seven", "seven"),
    ("", ""),
    (True, "True"),
    (None, "None"),
    (UUID, str(UUID)),
    (datetime.date(2024, 5, 1), "2024-05-01"),
    (Path("/a/b"), "/a/b"),
    (PurePosixPath("a/./b"), "a/b"),
    (UserId(7), "7"),
    ([1, "a", None], "[1, 'a', None]"),
    ((1, ("b", UUID)), f"(1, ('b', UUID('{UUID}')))"),
]


@pytest.mark.parametrize(("value", "text"), PLAIN, ids=str)
def test_what_is_written_the_same_everywhere_stands_as_it_is(value: Any, text: str) -> None:
    assert made("work:{x}", x=value) == f"work:{text}"


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (Invoice(5), "such as {x.id}"),
        (Item("a"), "such as {x.pk}"),
        (object(), "such as {x.id}"),
        (Invoice, "such as {x.id}"),
        (1.0, "say which digits count, as in {x:.2f}"),
        (float("nan"), "say which digits count"),
        (Decimal("1.00"), "say which digits count"),
        (1j, "say which digits count"),
        (Fraction(1, 2), "such as {x.id}"),
        (datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC), "as in {x:%Y-%m-%d}"),
        (datetime.time(7), "as in {x:%H.%M}"),
        (datetime.timedelta(1), "as in {x.days} or {x.seconds}"),
        (datetime.UTC, "such as {x.id}"),
        ({1, 2}, "no order of its own"),
        (frozenset({1}), "no order of its own"),
        ({"a": 1}, "name one value, as in {x[key]}"),
        (b"x", "pass text, or write {x!r}"),
        (Color.RED, "write {x.value} or {x.name}"),
        (Word.RED, "write {x.value} or {x.name}"),
        (Level.LOW, "write {x.value} or {x.name}"),
        (Number.ONE, "write {x.value} or {x.name}"),
        (Loud("x"), "write {x!s}, if its text is the same in every process"),
        (Index(), "write {x:d}"),
        ([Invoice(5)], "one of its items"),
        ((1, 2.0), "one of its items"),
        ([{1}], "one of its items"),
        (Point(1.0), "one of its items"),
        (len, "such as {x.id}"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_what_is_not_written_the_same_everywhere_is_refused_with_what_to_write(value: Any, advice: str) -> None:
    with pytest.raises(Misuse, match=r"cannot be made of \{x\}, a value of type") as error:
        made("work:{x}", x=value)
    assert advice in str(error.value)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("x.id", Invoice(5), "5"),
        ("x[1]", [3, 4], "4"),
        ("x[key]", {"key": 4}, "4"),
        ("x.value", Color.RED, "red"),
        ("x:.2f", 0.1 + 0.2, "0.30"),
        ("x:.2f", Decimal("0.3"), "0.30"),
        ("x:%Y-%m", datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC), "2024-05"),
        ("x:>5", 7, "    7"),
        ("x!r", "a:b", "'a:b'"),
        ("x!r", b"x", "b'x'"),
        ("x!s", 1.5, "1.5"),
        ("x!s", Loud("x"), "X"),
        ("x!r", [1, "a"], "[1, 'a']"),
        ("x!a", "ü", "'\\xfc'"),
    ],
)
def test_a_format_or_a_part_says_what_counts(field: str, value: Any, text: str) -> None:
    assert made(f"work:{{{field}}}", x=value) == f"work:{text}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("x!r", Invoice(5)), ("x!s", Invoice(5)), ("x!r", [Invoice(5)]), ("x!r", {1}), ("x!s", {"a": 1})),
        *(("x!s", [{1}]), ("x!r", (2.0, Invoice)), ("x:>5", Invoice(5)), ("x:d", "a"), ("x.none", 7), ("x[9]", [1])),
    ],
)
def test_a_format_that_gives_no_lasting_text_is_refused(field: str, value: Any) -> None:
    with pytest.raises(Misuse, match=r"cannot be (made of|filled in)"):
        made(f"work:{{{field}}}", x=value)


def test_an_integer_with_more_digits_than_python_writes_is_misuse() -> None:
    with pytest.raises(Misuse, match="cannot be filled in"):
        made("work:{x}", x=10**5000)


@pytest.mark.parametrize(
    ("template", "values"),
    [
        ("{a}:{b}", ("a:b", "c")),
        ("{a}::{b}", ("a:", "b")),
        ("{a}-{b}", ("2024-01", "2")),
        ("{a}/{b}", (Path("a/b"), "c")),
        ("{a}1{b}", (21, 3)),
        ("{a:s}:{b}", ("a:b", "c")),
        ("{a!s}:{b}", ("a:b", "c")),
    ],
)
def test_a_value_that_has_in_it_what_ends_its_field_is_refused(template: str, values: tuple[Any, Any]) -> None:
    """Other values would make the same name."""
    with pytest.raises(Misuse, match=r"other values could make the same name: write \{a!r\}"):
        made(template, a=values[0], b=values[1])


@pytest.mark.parametrize(
    ("template", "values", "name"),
    [
        ("{a}:{b}", ("a", "b:c"), "a:b:c"),
        ("{a!r}:{b}", ("a:b", "c"), "'a:b':c"),
        ("{a}-{b}", (-1, -2), "-1--2"),
        ("{a}-{b}", (UUID, "x-y"), f"{UUID}-x-y"),
        ("{a}-{b}", (datetime.date(2024, 5, 1), 3), "2024-05-01-3"),
        ("{a}, {b}", ([1, 2], 3), "[1, 2], 3"),
        ("{a:02}{b:02}", (1, 2), "0102"),
    ],
)
def test_values_that_can_be_told_apart_are_taken(template: str, values: tuple[Any, Any], name: str) -> None:
    assert made(template, a=values[0], b=values[1]) == name


def test_two_fields_with_nothing_between_are_refused_where_they_are_written() -> None:
    with pytest.raises(Misuse, match=r"nothing between \{a\} and \{b\}"):
        made("work:{a}{b}", a=1, b=23)


def test_names_tell_all_values_apart() -> None:
    """Of all short texts and small numbers: one that is taken is made of nothing else."""
    texts = ["".join(each) for size in range(4) for each in itertools.product("a:-", repeat=size)]
    for template, values in (
        *((each, texts) for each in ("{a}:{b}", "{a}::{b}", "{a}:-:{b}", "{a!r}-{b}", "x{a}:{b}:")),
        *((each, range(-12, 25)) for each in ("{a}:{b}", "{a}-{b}", "{a}1{b}", "{a}--{b}")),
    ):
        known, filled = dict[str, Any](), Template(template, "ab", "work").filled
        for pair in itertools.product(values, repeat=2):
            with contextlib.suppress(Misuse):
                name = filled({"a": pair[0], "b": pair[1]})[0]
                assert known.setdefault(name, pair) == pair, template
        assert len(known) > 10


def test_arguments_are_the_same_however_they_are_passed() -> None:
    def work(self: Any, a: int, b: int = 2, *args: int, c: str = "x", **kwargs: int) -> None: ...

    called = Called(work, "{self.id}/{a}/{b}/{args}/{c}/{kwargs[d]}")
    me = Invoice(9)
    names = {
        called.name((me, 1), {"d": 4}),
        called.name((me, 1, 2), {"c": "x", "d": 4}),
        called.name((me,), {"d": 4, "b": 2, "a": 1}),
    }
    assert names == {"9/1/2/()/x/4"}
    with pytest.raises(Misuse, match=r"cannot be made of \{kwargs\}"):
        Called(work, "{kwargs}").name((me, 1), {"d": 4})
    with pytest.raises(Misuse, match=r"such as \{self\.id\}"):
        Called(work, "{self}").name((me, 1), {})


ELSEWHERE = """
import sys; sys.path[:0] = [{tests!r}]
from core.test_template import *
print(everything())
"""


def everything() -> list[str]:
    """Names of all that may stand in one, and what is said of the rest."""
    names = [made("{x}", x=value) for value, _ in PLAIN]
    for value in (Invoice(1), {"b", "a", "c"}, {"b": 1, "a": 2}, 0.5, Color.RED, [Invoice(2)], lambda: None):
        for field in ("{x}", "{x!r}", "{x!s}"):
            try:
                names.append(made(field, x=value))
            except Misuse as misuse:
                names.append(str(misuse))
    fingerprints = [{"b": 1, "a": [2]}, ["x", None], "text", b"bytes", 17]
    return names + [str(fingerprint_of(each)) for each in fingerprints]


def test_names_and_fingerprints_are_the_same_in_all_processes() -> None:
    """Two that order their sets in other ways, and have objects at other addresses."""
    tests = str(Path(__file__).parents[1])
    found = [
        subprocess.run(
            [sys.executable, "-c", ELSEWHERE.format(tests=tests)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert len(set(ast.literal_eval(found[0]))) > 20


@pytest.fixture
def client(tmp_path: Path) -> Iterator[dibs.Client]:
    with dibs.connect(f"memory:{tmp_path.name}") as client:
        yield client


def test_of_objects_without_a_text_none_is_charged_and_none_is_answered_with_the_result_of_another(
    client: dibs.Client,
) -> None:
    charged = list[int]()

    @client.idempotent("charge:{invoice}")
    def charge(invoice: Invoice) -> int:
        charged.append(invoice.id)
        return invoice.id

    @client.idempotent("charge:{invoice.id}")
    def charge_it(invoice: Invoice) -> int:
        charged.append(invoice.id)
        return invoice.id

    for number in range(5):
        with pytest.raises(Misuse, match=r"write what identifies it, such as \{invoice\.id\}"):
            charge(Invoice(number))
    assert charged == []
    assert [charge_it(Invoice(number)) for number in (0, 1, 2, 1, 0)] == [0, 1, 2, 1, 0]
    assert charged == [0, 1, 2]


def test_a_name_with_the_address_of_an_object_is_refused_wherever_it_is_made(client: dibs.Client) -> None:
    """As an f-string makes one."""
    other = dibs.aio.connect("memory:addresses")
    name = f"charge:{Invoice(5)}"
    for each in (client, other):
        for describe in (each.lock, each.idempotent, each.locked, each.all):
            with pytest.raises(Misuse, match="contains the address of an object"):
                describe(name)
        with pytest.raises(Misuse, match="contains the address of an object"):
            each.once(name, slot="1")
        with pytest.raises(Misuse, match="contains the address of an object"):
            each.semaphore(name, 3)
        with pytest.raises(Misuse, match="contains the address of an object"):
            each.idempotent("charge", fingerprint=name)
    assert client.lock("work at 0x3f").name == "work at 0x3f"


def test_once_does_not_take_its_name_for_a_template(client: dibs.Client) -> None:
    """All shops would share one slot."""

    def sync(shop: int) -> None: ...

    with pytest.raises(Misuse, match="once makes no names of arguments"):
        client.once("sync:{shop}", slot="1")(sync)
    assert client.once("sync:{other}", slot="1")(sync)(3) is None
    assert client.once("sync:{", slot="1")(sync)(3) is None


def test_the_kind_of_a_fingerprint_counts(client: dibs.Client) -> None:
    kinds = ["1", b"1", 1, "b'1'", [1], "[1]"]
    assert len({fingerprint_of(kind) for kind in kinds}) == len(kinds)
    with client.idempotent("key", fingerprint="1"):
        pass
    with pytest.raises(KeyReused), client.idempotent("key", fingerprint=b"1"):
        pass


def test_a_caller_is_not_named_by_the_address_of_an_object() -> None:
    app: Any = Invoice(5)
    door = IdempotencyKeyMiddleware(app, dibs.aio.connect("memory:x"), scope=lambda scope: str(app))
    with pytest.raises(Misuse, match=r"the caller .* contains the address of an object"):
        door._caller({})
