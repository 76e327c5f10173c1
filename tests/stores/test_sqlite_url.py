"""Which file a URL of the embedded store means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dibs.errors import Misuse
from dibs.stores.sqlite_url import path_of


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///var/lib/x/locks.db", "/var/lib/x/locks.db"),
        ("sqlite:/var/lib/x/locks.db", "/var/lib/x/locks.db"),
        ("sqlite:////var/locks.db", "/var/locks.db"),
        ("SQLite:///var/a%20b%3F.db", "/var/a b?.db"),
        ("sqlite:///var/x/../locks.db", "/var/locks.db"),
        ("sqlite:///var/%C3%A4.db", "/var/ä.db"),
    ],
)
def test_the_path_is_taken_literally(url: str, path: str) -> None:
    assert path_of(url) == path


def test_without_a_slash_it_is_relative_to_where_we_are_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert path_of("sqlite:sub/rel.db") == os.path.realpath(tmp_path / "sub" / "rel.db")


def test_without_a_path_it_is_the_state_directory_of_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert path_of("sqlite:") == "/state/dibs/locks.db"
    monkeypatch.setenv("XDG_STATE_HOME", "relative, so to be ignored")
    monkeypatch.setenv("HOME", "/home/me")
    assert path_of("sqlite:") == "/home/me/.local/state/dibs/locks.db"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("sqlite://host/locks.db", "three slashes"),
        ("sqlite://locks.db", "three slashes"),
        ("sqlite://", "three slashes"),
        ("sqlite:///", "name the file"),
        ("sqlite:///var/", "name the file"),
        ("sqlite://:memory:", "memory:"),
        ("sqlite::memory:", "memory:"),
        ("sqlite:///var/locks.db?mode=ro", "no options"),
        ("sqlite:///var/locks.db#x", "no options"),
        ("sqlite:///var/a%00b", "NUL"),
        ("sqlite:~/locks.db", "in full"),
    ],
)
def test_what_cannot_be_meant_is_refused(url: str, sentence: str) -> None:
    with pytest.raises(Misuse, match=sentence):
        path_of(url)
