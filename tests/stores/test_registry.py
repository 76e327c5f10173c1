"""From a URL scheme to a store: built in, made elsewhere, or a sentence that says what there is."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from unittest.mock import patch

import pytest

from dibs.errors import Misuse, NotSupported
from dibs.runtime.threads import ThreadRuntime
from dibs.stores import open_store
from dibs.stores.memory.store import MemoryStore, open_url
from dibs.stores.registry import BUILT_IN


def open_toy(url: str, namespace: str, runtime: ThreadRuntime) -> MemoryStore:
    return open_url("memory:toy", namespace, runtime)


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_the_stores_that_need_no_server_are_built_in(scheme: str) -> None:
    assert scheme in BUILT_IN
    assert open_store(f"{scheme}:", "default", ThreadRuntime()).guarantees.name == scheme


def test_a_missing_driver_is_not_supported_and_names_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "toy_store.py").write_text("raise ImportError('needs toy: install dibs[toy]')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BUILT_IN, "toy", "toy_store")
    with pytest.raises(NotSupported, match=r"install dibs\[toy\]") as caught:
        open_store("toy:", "default", ThreadRuntime())
    assert isinstance(caught.value.__cause__, ImportError)


def test_a_faulty_import_of_our_own_is_not_mistaken_for_a_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN, "toy", "dibs.stores.no_such_module")
    with pytest.raises(ImportError):
        open_store("toy:", "default", ThreadRuntime())


def test_a_store_made_elsewhere_is_found_by_its_entry_point() -> None:
    entry = EntryPoint("toy", f"{__name__}:open_toy", "dibs.stores")
    with patch("importlib.metadata.entry_points", lambda **wanted: EntryPoints([entry]).select(**wanted)):
        assert isinstance(open_store("toy://host", "default", ThreadRuntime()), MemoryStore)
        with pytest.raises(Misuse, match="'other'"):
            open_store("other://host", "default", ThreadRuntime())


def test_an_unknown_scheme_is_told_what_there_is() -> None:
    with pytest.raises(Misuse, match="no store is known for the URL scheme 'nosuch'; known schemes: memory:"):
        open_store("nosuch://host", "default", ThreadRuntime())


@pytest.mark.parametrize(
    ("url", "near"), [("reddis://h", "redis:"), ("postgress://h", "postgres:"), ("sqlite3:x", "sqlite:")]
)
def test_a_scheme_with_a_slip_is_told_the_nearest(url: str, near: str) -> None:
    with pytest.raises(Misuse, match=f", did you mean {near}"):
        open_store(url, "default", ThreadRuntime())
