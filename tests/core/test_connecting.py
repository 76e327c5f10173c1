"""From a URL to a client: which text is a URL, and where it comes from when none is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dibs.core.connecting import connected
from dibs.errors import Misuse
from dibs.runtime.threads import ThreadRuntime


@pytest.mark.parametrize(
    "url",
    ["", "x", "memory", 5, b"memory:", "nosuch:", "nosuch://host", ":", "://", "memory:/x", "memory://host", True],
)
def test_what_is_no_url_of_a_store_is_misuse(url: Any) -> None:
    with pytest.raises(Misuse) as refused:
        connected(url, "default", ThreadRuntime())
    assert len(str(refused.value).split()) > 4


@pytest.mark.parametrize("namespace", ["", None, 5, b"x", "x" * 1001, "\ud800"])
def test_what_is_no_namespace_is_misuse(namespace: Any) -> None:
    with pytest.raises(Misuse, match="namespace"):
        connected("memory:", namespace, ThreadRuntime())


def test_the_scheme_may_be_written_in_capitals() -> None:
    assert connected("MEMORY:", "default", ThreadRuntime()).guarantees.name == "memory"


def test_the_url_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", "memory:environment")
    assert connected(None, "default", ThreadRuntime()).guarantees.name == "memory"


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_url_it_is_the_embedded_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None
) -> None:
    monkeypatch.delenv("DIBS_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    if value is not None:
        monkeypatch.setenv("DIBS_URL", value)
    assert connected(None, "default", ThreadRuntime()).guarantees.name == "sqlite"
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_url_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", "wrong")
    with pytest.raises(Misuse, match="DIBS_URL"):
        connected(None, "default", ThreadRuntime())
