"""The contract can be run on a store made elsewhere, as its docstring says, and it finds what is wrong with one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dibs.testing.contract import contract

TOY = '''
"""A store of somebody else: the table of the process, by another name."""

from dibs.stores.memory.store import MemoryStore, open_url

def open_toy(url, namespace, runtime):
    return open_url("memory:" + url.rpartition(":")[2].strip("/"), namespace, runtime)
'''

BROKEN = '''
"""Stores that each do one thing wrong."""

import pytest
from dibs.errors import LossReason
from dibs.holder import Holder
from dibs.runtime.clock import boot_time
from dibs.stores.memory.port.server import MemoryServer
from dibs.stores.memory.port.entry import Record
from dibs.stores.guarantees import Ability
from dibs.stores.memory.store import MemoryStore
from dibs.stores.store import Grant
from dibs.testing.contract import StoreContract


class ReleasesWhateverIsThere(MemoryServer):
    def release(self, space, name, token):
        record = self._records.get((space, name))
        return super().release(space, name, record.token if record and record.token else token)


class ReleasesByTheBeginningOfTheToken(MemoryServer):
    def release(self, space, name, token):
        record = self._records.get((space, name))
        held = record.token if record and record.token else token
        return super().release(space, name, held if held.startswith(token) else token)


class RenewsAndRevives(MemoryServer):
    def renew(self, space, name, token, ttl):
        record = self._records.setdefault((space, name), Record())
        if record.token in (None, token):
            record.token, record.expires_at = token, self._now() + ttl
            record.who = record.who or Holder(name, 1, "", 0, "", "", 0.0, None)
        return super().renew(space, name, token, ttl)


class ForgetsThatItGranted(MemoryServer):
    def grant(self, space, who, token, ttl, *, queue):
        record = self._records.get((space, who.name))
        if record and record.token == token:
            record.token = None
        return super().grant(space, who, token, ttl, queue=queue)


class CountsFromOne(MemoryServer):
    def _give(self, record, who, token, expires_at):
        record.fence = 0
        self.wall_us, keep = (lambda: 1), self.wall_us
        try:
            return super()._give(record, who, token, expires_at)
        finally:
            self.wall_us = keep


class Table(dict):
    def __init__(self, key):
        self.key = key
    def get(self, key, default=None):
        return super().get(self.key(*key), default)
    def setdefault(self, key, default=None):
        return super().setdefault(self.key(*key), default)


class FoldsNames(MemoryServer):
    def __init__(self, *args):
        super().__init__(*args)
        self._records = Table(lambda space, name: (space, name.casefold()))


class JoinsNamespaceAndName(MemoryServer):
    def __init__(self, *args):
        super().__init__(*args)
        self._records = Table(lambda space, name: f"{space}:{name}")
    def names(self, space):
        return sorted(key[len(space) + 1 :] for key in self._records if key.startswith(space + ":"))


class RoundsTheTtl(MemoryServer):
    def grant(self, space, who, token, ttl, *, queue):
        return super().grant(space, who, token, int(ttl) or 1, queue=queue)


class WakesAll(MemoryServer):
    def _hint_next(self, record, now):
        for ticket in record.line.values():
            ticket.hint()


class ServesTheLastFirst(MemoryServer):
    def release(self, space, name, token):
        record = self._records.get((space, name))
        if record:
            record.line = dict(reversed(record.line.items()))
        return super().release(space, name, token)


class ReservesForNobody(MemoryServer):
    def grant(self, space, who, token, ttl, *, queue):
        record = self._records.get((space, who.name))
        if record:
            record.free_since = float("-inf")
        return super().grant(space, who, token, ttl, queue=queue)


class EvictsWhoeverHolds(MemoryServer):
    def evict(self, space, name, fence, reason, by):
        record = self._records.get((space, name))
        return super().evict(space, name, record.fence if record else fence, reason, by)


class ReadsThePrefixAsAPattern(MemoryStore):
    async def holders(self, prefix, within):
        from fnmatch import fnmatchcase
        return [holder for holder in await super().holders("", within) if fnmatchcase(holder.name, prefix + "*")]


class AnswersRenewalsInAnyOrder(MemoryStore):
    async def renew(self, claims, within):
        return sorted(await super().renew(claims, within), key=str)


class CannotQueue(MemoryStore):
    """This one is right: it says what it cannot do."""
    guarantees = MemoryStore.guarantees._replace(cannot={Ability.ORDER: "whoever asks first gets it"})


SERVERS = {}


class Broken(StoreContract):
    runtimes = ("simulated",)

    @pytest.fixture
    def url(self, tmp_path):
        return str(tmp_path)

    def open_store(self, url, namespace, runtime):
        kind, server = (self.kind, MemoryServer) if issubclass(self.kind, MemoryStore) else (MemoryStore, self.kind)
        made = SERVERS.get(url) or server(runtime.now, lambda: 10**15 + round(runtime.now() * 1e6))
        SERVERS[url] = made
        return kind(made, namespace, runtime)


for kind in [
    thing for thing in list(globals().values())
    if isinstance(thing, type) and issubclass(thing, MemoryServer | MemoryStore)
    and thing not in (MemoryServer, MemoryStore)
]:
    globals()["Test" + kind.__name__] = type("Test" + kind.__name__, (Broken,), {"kind": kind})
'''

FOUND = {
    "ReleasesWhateverIsThere": "test_a_late_release_leaves_the_next_holder_alone",
    "ReleasesByTheBeginningOfTheToken": "test_a_token_is_compared_whole",
    "RenewsAndRevives": "test_a_renewal_of_what_has_ended_does_not_revive_it",
    "ForgetsThatItGranted": "test_a_grant_asked_for_again_with_its_token_is_the_same_grant",
    "CountsFromOne": "test_fences_rise_from_release_to_release",
    "FoldsNames": "test_every_name_is_a_lock_of_its_own",
    "JoinsNamespaceAndName": "test_namespaces_have_nothing_to_do_with_each_other",
    "RoundsTheTtl": "test_a_lease_that_nobody_renews_ends_after_its_ttl",
    "WakesAll": "test_one_release_wakes_one_waiter",
    "ServesTheLastFirst": "test_who_came_first_is_served_first",
    "ReservesForNobody": "test_who_has_no_ticket_does_not_barge_past_who_has_one",
    "EvictsWhoeverHolds": "test_only_the_grant_that_was_looked_at_is_evicted",
    "ReadsThePrefixAsAPattern": "test_a_prefix_is_text_and_no_pattern",
    "AnswersRenewalsInAnyOrder": "test_renewals_are_answered_in_the_order_of_the_question",
}
"""What is wrong with a store, and the test that finds it first."""


def pytest_on(directory: Path, *args: str) -> str:
    """Run pytest as its author would, in a directory that has only the store and its test."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", *args],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory), "COLUMNS": "300", "DIBS_SIM_SEED": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
    )
    return done.stdout + done.stderr


def example(number: int) -> str:
    """An example out of the docstring of the contract."""
    blocks = re.findall(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", contract.__doc__ or "")
    return textwrap.dedent(blocks[number])


def test_a_store_with_an_entry_point_runs_the_example_of_the_docstring(tmp_path: Path) -> None:
    (tmp_path / "toystore.py").write_text(TOY)
    info = tmp_path / "toystore-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toystore\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dibs.stores]\nmystore = toystore:open_toy\n")
    (tmp_path / "test_mystore.py").write_text(example(0))
    said = pytest_on(tmp_path, "-W", "error", "-k", "not simulated and (name or fence or cancel)")
    assert re.search(r"=+ \d\d passed, \d+ deselected in ", said), said


def test_a_store_without_an_entry_point_runs_the_other_example(tmp_path: Path) -> None:
    (tmp_path / "toystore.py").write_text(TOY)
    imports = (
        "import pytest\nfrom dibs.testing.contract import StoreContract\nfrom toystore import open_toy as MyStore\n"
    )
    (tmp_path / "test_mystore.py").write_text(imports + example(1))
    said = pytest_on(tmp_path, "-W", "error", "-k", "fence or names", "-v")
    assert re.search(r"=+ \d passed, \d+ deselected in ", said), said
    assert "[asyncio]" not in said


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Each broken store and the tests that it fails."""
    directory = tmp_path_factory.mktemp("broken")
    (directory / "test_broken.py").write_text(BROKEN)
    said = pytest_on(directory, "-q", "--no-header", "--tb=no", "-rfEs", "--timeout=30", f"-k={wanted()}")
    failed = re.findall(r"^FAILED test_broken.py::Test(\w+)::(\w+)\[", said, flags=re.M)
    skipped = re.findall(r"^SKIPPED .*?: (the store .+)$", said, flags=re.M)
    return {**{kind: [test for known, test in failed if known == kind] for kind in FOUND}, "skipped": skipped}


def wanted() -> str:
    """The tests that are expected to find something, for pytest -k."""
    return " or ".join(sorted(set(FOUND.values())))


@pytest.mark.parametrize("kind", FOUND)
def test_the_contract_finds_a_store_that(kind: str, findings: dict[str, list[str]]) -> None:
    assert FOUND[kind] in findings[kind]


def test_what_a_store_declares_that_it_cannot_do_is_skipped_with_its_words(findings: dict[str, list[str]]) -> None:
    assert findings["skipped"]
    assert all("declares that it has no order: whoever asks first" in why for why in findings["skipped"])
