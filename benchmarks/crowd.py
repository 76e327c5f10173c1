"""Many who wait for one lock, each with a client of its own: how many calls they make for each hand-over."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager

import dibs
from page import Aim

CROWD = 32


def calls_for_each(url: str, counting: AbstractContextManager[Counter[str]], most: float) -> Aim:
    """Let all wait, and then pass the lock on among them; *counting* counts all calls, whatever they are for."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(dibs.connect(url)) for _ in range(CROWD)]
        looking = stack.enter_context(dibs.connect(url))
        lease = looking.lock("crowd").acquire()
        waiters = [threading.Thread(target=_hold_once, args=(client,)) for client in clients]
        for number, waiter in enumerate(waiters):
            waiter.start()
            while len(looking.show("crowd").waiting) <= number:
                time.sleep(0.005)
        with counting as calls:
            lease.release()
            for waiter in waiters:
                waiter.join()
    each = calls.total() / CROWD
    return Aim(f"calls for each hand-over among {CROWD} waiters", f"≤ {most:g}", f"{each:.1f}", each <= most)


def _hold_once(client: dibs.Client) -> None:
    with client.lock("crowd"):
        pass
