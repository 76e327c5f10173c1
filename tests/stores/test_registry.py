"""From a URL scheme to a store: built in, made elsewhere, or a sentence that says what there is."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from unittest.mock import patch

import pytest

from dibs.errors import Misuse
from dibs.runtime.threads import ThreadRuntime
from dibs.stores import open_store
from dibs.stores.memory import MemoryStore, open_url
from dibs.stores.registry import BUILT_IN


def open_toy(url: str, namespace: str, runtime: ThreadRuntime) -> MemoryStore:
    return open_url("memory:toy", namespace, runtime)


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_the_stores_that_need_no_server_are_built_in(scheme: str) -> None:
    assert scheme in BUILT_IN
    assert open_store(f"{scheme}:", "default", ThreadRuntime()).guarantees.name == scheme


def test_a_store_made_elsewhere_is_found_by_its_entry_point() -> None:
    entry = EntryPoint("toy", f"{__name__}:open_toy", "dibs.stores")
    with patch("importlib.metadata.entry_points", lambda **wanted: EntryPoints([entry]).select(**wanted)):
        assert isinstance(open_store("toy://host", "default", ThreadRuntime()), MemoryStore)
        with pytest.raises(Misuse, match="'other'"):
            open_store("other://host", "default", ThreadRuntime())


def test_an_unknown_scheme_is_told_what_there_is() -> None:
    with pytest.raises(Misuse, match="no store is known for the URL scheme 'nosuch'; there is memory:"):
        open_store("nosuch://host", "default", ThreadRuntime())
