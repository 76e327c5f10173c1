"""A server that is missing is found out in time, and nowhere by a green run that tested nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers import programs


@pytest.fixture(autouse=True)
def unpacked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that has nothing."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(programs, "UNPACKED", tmp_path)
    return tmp_path


def test_missing_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has no such server can still run the other tests."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no redis-server"):
        programs.program("redis-server")


def test_missing_is_a_failure_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """CI tests everything or says that it does not."""
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no redis-server"):
        programs.program("redis-server")


def test_unpacked_program_brings_its_libraries(unpacked: Path) -> None:
    """What was unpacked for the tests is used where it is."""
    libraries = unpacked / "redis/usr/lib/some-linux-gnu"
    libraries.mkdir(parents=True)
    found = unpacked / "redis/usr/bin/redis-server"
    found.parent.mkdir()
    found.touch(0o755)
    assert programs.program("redis-server") == (str(found), {"LD_LIBRARY_PATH": str(libraries)})
