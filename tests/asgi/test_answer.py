"""Of the header one string is taken, quoted or bare; an answer comes back from its bytes as it was."""

from __future__ import annotations

import pytest

from dibs.asgi.answer import LONGEST_KEY, Response, asked_for, digest, from_bytes, key_in, problem


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b'"8e03978e-40d5-43dd-bc93-6894a57f9324"', "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        (b"8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        (b'  "a b"\t', "a b"),
        (b'"say \\"hi\\" \\\\"', 'say "hi" \\'),
        (b'"a";sent=1; b', "a"),
        (b'"' + b"x" * LONGEST_KEY + b'"', "x" * LONGEST_KEY),
    ],
)
def test_a_key_is_a_string(value: bytes, key: str) -> None:
    assert key_in([value]) == key


@pytest.mark.parametrize(
    "value",
    [
        *(
            b"",
            b'""',
            b'"',
            b'"a',
            b'a"',
            b'"a"b"',
            b'"a\\n"',
            b'"\x00"',
            b'"\xc3\xbc"',
            b"a b",
            b"a,b",
            b'"a", "b"',
            b"?1;",
        ),
        *(b"(a)", b'"a";', b'"a";=1', b'"' + b"x" * (LONGEST_KEY + 1) + b'"'),
    ],
)
def test_what_is_no_string_is_no_key(value: bytes) -> None:
    assert key_in([value]) is None


def test_one_request_has_one_key() -> None:
    assert key_in([b'"a"', b'"a"']) is None


@pytest.mark.parametrize("body", [b"", b"\xff\n\x00", None])
def test_an_answer_comes_back_as_it_was(body: bytes | None) -> None:
    answer = Response(201, [(b"location", b"/\xfc"), (b"link", b"a"), (b"link", b"b")], body)
    assert from_bytes(answer.to_bytes()) == answer


def test_nothing_in_one_part_is_taken_for_the_next() -> None:
    assert digest(b"ab", b"c") != digest(b"a", b"bc") != digest(b"a1:b", b"c")
    scope = {"method": "POST", "path": "/a", "query_string": b""}
    assert asked_for({**scope, "raw_path": b"/a%2Fb"}, b"") != asked_for({**scope, "raw_path": b"/a/b"}, b"")
    assert asked_for(scope, b"x") == asked_for({**scope}, b"x")
    for other in ({"method": "PATCH"}, {"path": "/b"}, {"query_string": b"x"}, {"raw_path": b"/a%2Fb"}):
        assert asked_for({**scope, **other}, b"x") != asked_for(scope, b"x")


def test_a_problem_is_a_document() -> None:
    answer = problem(422, "take a new one", first=1)
    assert answer.status == 422
    assert dict(answer.headers)[b"content-type"] == b"application/problem+json"
    assert answer.body is not None
    assert b'"detail": "take a new one"' in answer.body
