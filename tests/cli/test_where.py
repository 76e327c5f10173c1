"""Where the locks are: the same place for a command in another directory, and nothing made by looking."""

from __future__ import annotations

import os
import sys

import pytest

from .processes import Sandbox

DIBS = f"{sys.executable} -m dibs"
LEASE = "dibs1:x:secret:17:30.0:"


def test_a_command_in_another_directory_finds_the_lock_of_a_relative_url(box: Sandbox) -> None:
    done = box.dibs("run", "--url", "sqlite:rel.db", "x", "-c", f"mkdir sub && cd sub && {DIBS} check && ls")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("x is held with fence ")
    assert box.file("rel.db").exists()
    assert os.listdir(box.file("sub")) == []


@pytest.mark.parametrize("name", ["a b.db", "ü.db", "100%25.db", "a%3Fb%23.db"])
def test_the_url_that_a_command_gets_means_the_same_file(box: Sandbox, name: str) -> None:
    done = box.dibs("run", "--url", f"sqlite:{name}", "x", "-c", f"cd / && {DIBS} check")
    assert done.returncode == 0, done.stderr


def test_the_url_that_a_command_gets_names_this_users_own_file_in_full(box: Sandbox) -> None:
    state = str(box.directory / "state")
    done = box.dibs("run", "x", "-c", "echo $DIBS_URL", DIBS_URL="", XDG_STATE_HOME=state)
    assert done.stdout == f"sqlite://{state}/dibs/locks.db\n"


VERBS = [
    ("run", "x", "--", "true"),
    ("acquire", "x"),
    ("renew", LEASE),
    ("release", LEASE),
    ("ls",),
    ("show", "x"),
    ("check", LEASE),
    ("evict", "x", "--fence", "1", "--reason", "a test"),
]


@pytest.mark.parametrize("call", VERBS, ids=lambda call: call[0])
@pytest.mark.parametrize("url", ["memory:", "MEMORY:x"])
def test_locks_in_the_memory_of_one_process_are_refused(box: Sandbox, call: tuple[str, ...], url: str) -> None:
    done = box.dibs(*call, DIBS_URL=url)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("dibs: memory: is the memory of one process")


@pytest.mark.parametrize(
    ("call", "code", "out"),
    [
        (("ls",), 0, "no locks are held"),
        (("ls", "--json"), 0, "[]"),
        (("show", "x"), 0, "nobody"),
        (("show", "x", "--json"), 0, '"holder": null'),
        (("check", LEASE), 76, ""),
        (("evict", "x", "--fence", "1", "--reason", "a test"), 75, ""),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else None,
)
def test_looking_where_nobody_took_a_lock_says_so_and_creates_nothing(
    box: Sandbox, call: tuple[str, ...], code: int, out: str
) -> None:
    done = box.dibs(*call, "--url", f"sqlite:///{box.directory}/typo/deep/x.db")
    assert done.returncode == code
    assert out in done.stdout
    path = f"{box.directory}/typo/deep/x.db"
    assert done.stderr.startswith(f"dibs: nobody has taken a lock in {path}: there is no such file\n")
    assert os.listdir(box.directory) == []
