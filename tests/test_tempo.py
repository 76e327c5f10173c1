"""What a test says of how long something took is true on a quiet machine, and no lie on one that stands still."""

from __future__ import annotations

import ctypes
import time

import pytest

from tempo import Naps, took


def test_a_wait_that_is_too_long_is_found() -> None:
    """On a machine that has time for nobody the naps are fewer: then it is tried again."""
    for _ in range(20):
        try:
            with took(0.1):
                time.sleep(0.5)
        except AssertionError:
            return
    pytest.fail("half a second was not told from a tenth of it")


def test_a_machine_that_stands_still_does_not_count() -> None:
    libc = ctypes.PyDLL(None)  # keeps the GIL, as a process that is not given the processor
    with took(0.3):
        libc.usleep(800_000)


def test_no_thread_is_left() -> None:
    naps = Naps()
    naps.start()
    assert naps.stop() >= 0
    assert not naps.is_alive()


def test_the_error_of_the_block_comes_out() -> None:
    with pytest.raises(ZeroDivisionError), took(0.0):
        raise ZeroDivisionError
