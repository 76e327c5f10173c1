"""A client that is closed at any moment of its steps: from a signal handler, another thread or another task."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """
import asyncio, collections, random, signal, sys, threading, time
import dibs, dibs.aio

url, told = sys.argv[1], collections.Counter()
watch = dibs.connect(url)
moments = random.Random(7)
TIMES = 15

def work(client, name):
    try:
        while True:  # tests/test_loops.py
            with client.lock(name, timeout=20, ttl=60):
                pass
    except BaseException as error:
        told[type(error).__name__] += 1

def see(name):
    assert [holder.name for holder in watch.holders(name)] == [], name
"""

TELLING = """
assert told == {"Misuse": TIMES}, told
print("nothing left")
"""

HOW = {
    "a signal handler": """
def handle(*_):
    client.close()

signal.signal(signal.SIGALRM, handle)
for time in range(TIMES):
    client, name = dibs.connect(url), f"closed {time}"
    if time % 3:
        client.holders()
    signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.0001, 0.006))
    work(client, name)
    see(name)
""",
    "another thread": """
for number in range(TIMES):
    client, name = dibs.connect(url), f"closed {number}"
    if number % 3:
        client.holders()
    thread = threading.Thread(target=work, args=(client, name))
    thread.start()
    time.sleep(moments.uniform(0.0001, 0.006))
    client.close()
    thread.join()
    see(name)
""",
    "another task": """
async def main():
    for number in range(TIMES):
        client, name = dibs.aio.connect(url), f"closed {number}"
        if number % 3:
            await client.holders()
        task = asyncio.create_task(work_in_a_task(client, name))
        await asyncio.sleep(moments.uniform(0.0001, 0.006))
        await client.close()
        await task
        await asyncio.to_thread(see, name)

async def work_in_a_task(client, name):
    try:
        while True:
            async with client.lock(name, timeout=20, ttl=60):
                await asyncio.sleep(0)
    except BaseException as error:
        told[type(error).__name__] += 1

asyncio.run(main())
""",
}


@pytest.mark.parametrize("how", HOW)
def test_only_misuse_comes_out_and_nothing_is_left_when_it_is_closed_by(how: str, every_store: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", HEAD + HOW[how] + TELLING, every_store],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == "nothing left\n"
