"""Which file a URL of the embedded store means."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from dibs.errors import Misuse
from dibs.stores.sqlite.url import file_of


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
    assert file_of(url).path == path


def test_without_a_slash_it_is_relative_to_where_we_are_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert file_of("sqlite:sub/rel.db").path == os.path.realpath(tmp_path / "sub" / "rel.db")


def test_without_a_path_it_is_the_state_directory_of_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert file_of("sqlite:").path == "/state/dibs/locks.db"
    monkeypatch.setenv("XDG_STATE_HOME", "relative, so to be ignored")
    monkeypatch.setenv("HOME", "/nobody/is/here")
    assert file_of("sqlite:").path == "/nobody/is/here/.local/state/dibs/locks.db"


@pytest.mark.parametrize("home", [None, "", "relative"])
def test_without_a_home_directory_in_the_environment_it_is_the_one_that_the_system_knows(
    monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME") if home is None else monkeypatch.setenv("HOME", home)
    known = pwd.getpwuid(os.geteuid()).pw_dir
    assert file_of("sqlite:").path == f"{known}/.local/state/dibs/locks.db"


@pytest.mark.parametrize("home", [None, "", "relative"])
def test_a_user_without_a_home_directory_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME") if home is None else monkeypatch.setenv("HOME", home)
    with pytest.raises(Misuse, match=r"XDG_STATE_HOME.*DIBS_URL"):
        file_of("sqlite:")


@pytest.mark.parametrize("variable", ["HOME", "XDG_STATE_HOME"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_root_leaves_no_folders_of_its_own_in_the_home_of_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    os.chown(tmp_path, 12345, 12345)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(variable, str(tmp_path / "not yet there"))
    assert file_of("sqlite:").path == f"{pwd.getpwuid(0).pw_dir}/.local/state/dibs/locks.db"


def test_a_relative_path_in_a_deleted_directory_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(Misuse, match=r"deleted.*absolute"):
        file_of("sqlite:locks.db")
    assert file_of("sqlite:///srv/locks.db").path == "/srv/locks.db"


def test_the_user_can_vouch_for_a_file_system() -> None:
    assert file_of("sqlite:///srv/locks.db?file_system=local") == ("/srv/locks.db", True)
    assert not file_of("sqlite:///srv/locks.db").trusted


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
        ("sqlite:///var/locks.db?mode=ro", "only option"),
        ("sqlite:///var/locks.db?file_system=nfs", "only option"),
        ("sqlite:///var/locks.db?file_system=local&file_system=local", "only option"),
        ("sqlite:?mode=ro", "only option"),
        ("sqlite:///var/locks.db#x", "only option"),
        ("sqlite:///var/a%00b", "NUL"),
        ("sqlite:~/locks.db", "in full"),
    ],
)
def test_what_cannot_be_meant_is_refused(url: str, sentence: str) -> None:
    with pytest.raises(Misuse, match=sentence):
        file_of(url)
