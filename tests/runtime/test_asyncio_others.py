"""Other ways to run code at once than threads and asyncio are refused by name, with what to do instead."""

from __future__ import annotations

import subprocess
import sys

import pytest

TRIO = """
import trio, dibs, dibs.aio
client = dibs.aio.connect("memory:")
async def main():
    for use in (client.lock("x").acquire, client.lock("x").try_acquire, lambda: dibs.aio.lock("x").acquire()):
        try:
            await use()
        except dibs.Misuse as error:
            print(error)
trio.run(main)
"""

ANYIO = """
import anyio, dibs, dibs.aio
async def main():
    try:
        async with dibs.aio.connect("memory:").lock("x"):
            print("inside")
    except dibs.Misuse as error:
        print(error)
anyio.run(main, backend="trio")
anyio.run(main, backend="asyncio")
"""

GUEST = """
import asyncio, trio, dibs, dibs.aio
async def main():
    try:
        await dibs.aio.connect("memory:").lock("x").acquire()
    except dibs.Misuse as error:
        print(error)
async def host():
    done = asyncio.Event()
    trio.lowlevel.start_guest_run(main, run_sync_soon_threadsafe=asyncio.get_running_loop().call_soon_threadsafe,
        done_callback=lambda outcome: done.set())
    await done.wait()
asyncio.run(host())
"""

EVENTLET = """
import warnings
warnings.simplefilter("ignore")
import eventlet
eventlet.monkey_patch({how})
import dibs
try:
    with dibs.connect("memory:").lock("x"):
        print("inside")
except dibs.Misuse as error:
    print(error)
"""


def said(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_trio_is_refused_wherever_it_is_met() -> None:
    lines = said(TRIO)
    assert len(lines) == 3
    assert all("this is a task of trio" in line for line in lines)


def test_anyio_is_refused_on_trio_and_served_on_asyncio() -> None:
    refused, served = said(ANYIO)
    assert "run anyio on its asyncio backend" in refused
    assert served == "inside"


def test_trio_is_refused_also_as_a_guest_of_asyncio() -> None:
    [refused] = said(GUEST)
    assert "this is a task of trio" in refused


def test_without_any_loop_the_blocking_api_is_named() -> None:
    [refused] = said(
        "import dibs, dibs.aio\n"
        "try:\n    dibs.aio.connect('memory:').lock('x').acquire().send(None)\n"
        "except dibs.Misuse as error:\n    print(error)"
    )
    assert "in blocking code use dibs" in refused


@pytest.mark.parametrize(("how", "answer"), [("", "eventlet has replaced the threads"), ("thread=False", "inside")])
def test_eventlet_is_refused_where_it_has_replaced_the_threads(how: str, answer: str) -> None:
    [line] = said(EVENTLET.format(how=how))
    assert line.startswith(answer)
