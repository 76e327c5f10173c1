"""Bytes of HTTP: what is asked, and answers in whatever pieces they come."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.ports.http.message import Conversation, HttpRequest, json_body, target

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n4\r\nabcd\r\n3\r\nefg\r\n0\r\n\r\n"


def test_a_request_is_one_piece_with_its_length() -> None:
    sent = Conversation("h:1").ask(HttpRequest("POST", "/v3/x", b"{}", (("Authorization", "t"),)))
    assert sent.startswith(b"POST /v3/x HTTP/1.1\r\nHost: h:1\r\n")
    assert b"\r\nContent-Length: 2\r\n" in sent
    assert b"\r\nAuthorization: t\r\n" in sent
    assert sent.endswith(b"\r\n\r\n{}")


@given(st.lists(st.integers(1, len(CHUNKED) - 1)))
def test_an_answer_is_the_same_in_whatever_pieces_it_comes(cuts: list[int]) -> None:
    conversation = Conversation("h:1")
    conversation.ask(HttpRequest("GET", "/"))
    ends = [0, *sorted(set(cuts)), len(CHUNKED)]
    pieces = [CHUNKED[start:end] for start, end in itertools.pairwise(ends)]
    for piece in pieces[:-1]:
        conversation.feed(piece)
        assert conversation.answer() is None
    conversation.feed(pieces[-1])
    answer = conversation.answer()
    assert answer is not None
    assert (answer.status, answer.body, answer.headers["x-a"]) == (200, b"abcdefg", "b")
    assert conversation.reusable
    assert conversation.ask(HttpRequest("GET", "/")).startswith(b"GET / ")


def test_an_answer_that_closes_the_connection_is_the_last() -> None:
    conversation = Conversation("h:1")
    conversation.ask(HttpRequest("GET", "/"))
    conversation.feed(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    assert conversation.answer() is not None
    assert not conversation.reusable


def test_what_is_no_answer_is_told() -> None:
    conversation = Conversation("h:1")
    conversation.ask(HttpRequest("GET", "/"))
    conversation.feed(b"SSH-2.0-OpenSSH\r\n\r\n")
    with pytest.raises(ValueError, match="its answer is not HTTP"):
        conversation.answer()


def test_paths_and_parameters_are_quoted() -> None:
    assert target("/v1/kv/a b/ü", {"cas": "0", "recurse": None}) == "/v1/kv/a%20b/%C3%BC?cas=0&recurse"
    assert target("/v3/kv/txn") == "/v3/kv/txn"
    assert json_body({"a": [1, "ü"]}) == b'{"a":[1,"\\u00fc"]}'
