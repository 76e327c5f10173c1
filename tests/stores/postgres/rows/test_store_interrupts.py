"""Ctrl-C at any call into libpq: what is asked afterwards gets its own answer, and what is lost is told."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dibs.errors import LossReason
from dibs.stores.postgres.port.connection import Line
from dibs.stores.postgres.port.pool import Port
from dibs.stores.postgres.port.turns import Turns
from dibs.stores.store import Ask, Grant
from servers.postgres import PostgresServer
from servers.process import until
from stores.rows import Steps, steps
from tempo import took

ENOUGH = 60
"""More calls than a request makes."""

AT_ONCE = 2.0
"""Seconds, on a busy machine; a step has 5 s, and a lease 30 s."""

CONNECTIONS = 4
"""Those that a client may have."""


class Interrupting:
    """A connection of libpq; the call number *at* to it, from 0, is interrupted."""

    def __init__(self, inner: Any, at: int, *, after: bool) -> None:
        self.inner, self._left, self._after = inner, at, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return self._counted(found) if callable(found) else found

    def _counted(self, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self._left -= 1
            if self._left == -1 and not self._after:
                raise KeyboardInterrupt
            done = function(*arguments)
            if self._left == -1:
                raise KeyboardInterrupt
            return done

        return call


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All connections that are opened from now on."""
    found: list[Any] = []
    begin = Line.__init__

    def noted(line: Line, *arguments: Any) -> None:
        begin(line, *arguments)
        found.append(line)

    monkeypatch.setattr(Line, "__init__", noted)
    return found


@contextmanager
def interrupted(lines: list[Any], at: int, *, after: bool) -> Iterator[None]:
    """Interrupt the call number *at* to each of *lines*."""
    inner = [(line, line._pg) for line in lines]
    for line, connection in inner:
        line._pg = Interrupting(connection, at, after=after)
    try:
        yield
    finally:
        for line, connection in inner:
            line._pg = connection


def cut(client: Steps, name: str, lines: list[Any], at: int, *, after: bool, shared: bool = False) -> Ask | None:
    """The ask that was interrupted; None if it makes fewer calls than that."""
    ask = client.ask(name, shared=shared)
    try:
        with interrupted(lines, at, after=after):
            client.grant(ask)
    except KeyboardInterrupt:
        return ask
    return None


@pytest.mark.parametrize("after", [False, True])
def test_rows_are_asked_right_after_an_interrupt(postgres: PostgresServer, lines: list[Any], *, after: bool) -> None:
    with steps(postgres.url) as client:
        first = client.take("first")
        for at in range(ENOUGH):
            name = f"cut at {at}"
            ask = cut(client, name, lines, at, after=after)
            if ask is None:
                break
            held = client.take(f"next to {name}")
            assert client.fence(held.name) == held.fence
            assert client.renew(held, first) == [None, None]
            assert client.release(held) is None
            client.release(ask)
            assert client.release(client.take(name)) is None
        assert 5 < at < ENOUGH - 1
        assert client.release(first) is None


@pytest.mark.parametrize("after", [False, True])
def test_session_locks_are_kept_or_told_after_an_interrupt(
    postgres: PostgresServer, lines: list[Any], *, after: bool
) -> None:
    url = postgres.url_of(scheme="postgresql+advisory")
    with steps(url) as others, steps(url) as client:
        others.release(others.take("others"))
        theirs = list(lines)
        for at in range(ENOUGH):
            first, name = client.take(f"first {at} {after}"), f"session cut at {at}"
            ours = [line for line in lines if line not in theirs]
            ask = cut(client, name, ours, at, after=after)
            if ask is None:
                break
            [told] = client.renew(first)
            assert told in {None, LossReason.SESSION_ENDED}
            if told:
                until(functools.partial(is_granted, others, first.name), "the server has ended the session")
            else:
                assert not is_granted(others, first.name)
            client.release(ask)
            held = client.take(name)
            assert client.fence(name) == held.fence
            assert client.release(held) is None
            assert client.release(first) in {None, told, LossReason.TAKEN}
        assert 5 < at < ENOUGH - 1


@pytest.mark.parametrize("after", [False, True])
def test_who_shares_a_session_lock_keeps_it_after_an_interrupt_of_another_who_wants_to(
    postgres: PostgresServer, lines: list[Any], *, after: bool
) -> None:
    url = postgres.url_of(scheme="postgresql+advisory")
    with steps(url) as others, steps(url) as client:
        others.release(others.take("others"))
        theirs = list(lines)
        for at in range(ENOUGH):
            first = client.take(f"shared {at} {after}", shared=True)
            ours = [line for line in lines if line not in theirs]
            ask = cut(client, first.name, ours, at, after=after, shared=True)
            if ask is None:
                break
            client.release(ask)
            [told] = client.renew(first)
            assert told in {None, LossReason.SESSION_ENDED}
            if not told:
                assert not is_granted(others, first.name)
                assert client.release(first) is None
            until(functools.partial(is_granted, others, first.name), "it is free")
        assert 5 < at < ENOUGH - 1


def is_granted(client: Steps, name: str) -> bool:
    return isinstance(client.grant(client.ask(name)), Grant)


def test_an_interrupt_after_a_connection_was_given_out_does_not_use_it_up(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with steps(postgres.url) as client:
        for at in range(2 * CONNECTIONS):
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(Line, "alive", interrupt)
                patch.setattr(Port, "open", interrupt)
                client.take(f"x{at}")
            client.release(client.take("x", within=1.0))


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_when_a_session_was_given_out_ends_it_and_tells_what_it_held(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url_of(scheme="postgresql+advisory")
    take_now = Turns.take_now

    def interrupt_after(turns: Any) -> None:
        take_now(turns)
        raise KeyboardInterrupt

    with steps(url) as client, steps(url) as others:
        held = client.take("given out")
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Turns, "take_now", interrupt_after)
            client.take("another")
        with took(AT_ONCE):
            client.release(client.take("a third"))
            assert client.renew(held) == [LossReason.SESSION_ENDED]
            until(functools.partial(is_granted, others, held.name), "the server has ended the session")
