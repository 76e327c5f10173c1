"""What happens where the operating system gives no more threads or descriptors: nothing is left behind, and later all
is well."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from dibs.core.client import Client
from dibs.errors import StoreUnavailable
from dibs.testing.contract.ownership import is_free
from dibs.testing.contract.suite import Kind
from dibs.testing.contract.world import STEP, World

MOST = 20
"""Threads that taking one lock may start, and descriptors that it may open."""

OF_AN_OPEN_FILE = 5
"""Arguments of the making of a socket, itself included, when there is a descriptor already."""


class Scarce(Kind):
    """A client that cannot have what it needs refuses, gives back, and tries anew the next time."""

    async def test_each_thread_that_cannot_be_started_leaves_nothing_and_breaks_nothing(self, world: World) -> None:
        await _with_ever_more(world, RuntimeError("can't start new thread"), (threading.Thread, "start"))

    async def test_each_descriptor_that_cannot_be_opened_leaves_nothing_and_breaks_nothing(self, world: World) -> None:
        opened: list[tuple[object, str]] = [(socket.socket, "__init__"), (socket, "socketpair"), (os, "open")]
        opened += [(module, name) for module, name in ((select, "epoll"), (os, "eventfd")) if hasattr(module, name)]
        await _with_ever_more(world, OSError(errno.EMFILE, os.strerror(errno.EMFILE)), *opened)


async def _with_ever_more(world: World, error: Exception, *calls: tuple[object, str]) -> None:
    """Take a lock with none, one, two … of what *calls* make, until it needs no more."""
    for most in range(MOST):
        client, name = world.client(), world.name()
        with at_most(most, error, *calls) as refused:
            try:
                await (await client.lock(name, ttl=600).acquire(timeout=0)).release()
            except StoreUnavailable:
                assert refused
        await world.until(lambda name=name: is_free(world, name))  # type: ignore[misc]  # a lambda with a default
        await world.until(lambda client=client, name=name: _taken(client, name))  # type: ignore[misc]  # see above
        await client.close()
        if not refused:
            return
    raise AssertionError(f"one lock takes more than {MOST}")


async def _taken(client: Client, name: str) -> bool:
    """Take it and give it back. A store of several nodes may leave one that failed alone for a moment."""
    try:
        await (await client.lock(name).acquire(timeout=STEP)).release()
    except StoreUnavailable:
        return False
    return True


@contextmanager
def at_most(most: int, error: Exception, *calls: tuple[object, str]) -> Iterator[list[str]]:
    """Let this thread have *most* of what *calls* make, and then fail with *error*; yields those that failed."""
    refused, mine, left = list[str](), threading.get_ident(), [None] * most

    def scarce(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == mine and len(args) < OF_AN_OPEN_FILE:
                if not left:
                    refused.append(name)
                    raise error
                left.pop()
            return make(*args, **kwargs)

        return made

    with ExitStack() as patched:
        for owner, name in calls:
            patched.enter_context(patch.object(owner, name, scarce(name, getattr(owner, name))))
        yield refused
