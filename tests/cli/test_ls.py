"""`dibs ls`: a table for people, a list for programs."""

from __future__ import annotations

import socket

from dibs.cli.ls import HEAD, row, table
from dibs.holder import Holder

from .processes import Sandbox

HOLDER = Holder("invoice:42", 17, "db3", 4711, "shop", "two\nlines", 1718000000.0, 12.34)


def test_the_columns_are_aligned_and_a_note_stays_on_its_line() -> None:
    lines = table([HEAD, row(HOLDER), row(HOLDER._replace(name="x", expires_in=None, note=""))]).split("\n")
    assert lines[0].split() == list(HEAD)
    assert len(lines) == 3
    assert [line.index("db3") for line in lines[1:]] == [lines[0].index("HOST")] * 2
    assert lines[1].endswith("12.3 s   all    two\\nlines")
    assert lines[2].endswith("-        all")


def test_it_says_so_when_no_locks_are_held(box: Sandbox) -> None:
    assert box.dibs("ls").stdout == "no locks are held\n"
    assert box.json("ls") == []


def test_it_lists_who_holds_what(box: Sandbox) -> None:
    for name in ("a:1", "a:2", "b:1"):
        box.dibs("acquire", name, "--note", f"note of {name}")
    done = box.dibs("ls", "a:")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["NAME", "a:1", "a:2"]
    assert "note of a:1" in done.stdout
    assert socket.gethostname() in done.stdout


def test_a_name_that_several_share_has_a_line_for_each(box: Sandbox) -> None:
    for note in ("first", "second"):
        box.dibs("acquire", "encoder", "--slots", "3", "--note", note)
    box.dibs("acquire", "tables", "--shared")
    lines = box.dibs("ls").stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["encoder", "encoder", "tables"]
    assert ["1 of 3 slots" in line for line in lines] == [True, True, False]
    assert "shared" in lines[2]


def test_json_has_the_facts_of_every_holder(box: Sandbox) -> None:
    box.dibs("acquire", "x", "--note", "mine")
    [holder] = box.json("ls")
    assert set(holder) == set(Holder._fields)
    assert (holder["name"], holder["note"], holder["host"]) == ("x", "mine", socket.gethostname())


def test_namespaces_have_nothing_to_do_with_each_other(box: Sandbox) -> None:
    box.dibs("acquire", "x", "--namespace", "shop")
    assert box.json("ls") == []
    assert len(box.json("ls", "--namespace", "shop")) == 1
    assert "x" in box.dibs("ls", DIBS_NAMESPACE="shop").stdout
