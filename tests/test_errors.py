"""Every error says its facts in a sentence, and survives the way to another process."""

from __future__ import annotations

import copy
import pickle

import pytest

import dibs
from dibs import errors
from dibs.errors import (
    Changed,
    Deleted,
    DibsError,
    GuardMissing,
    KeyReused,
    LeaseLost,
    LossReason,
    Misuse,
    NotAcquired,
    NotSupported,
    OutcomeUnknown,
    Skipped,
    SkipReason,
    StaleFence,
    StoreUnavailable,
)
from dibs.holder import Eviction, Holder, LockState

HOLDER = Holder("invoice", 7, "host-a", 42, "anna", "nightly", 1_700_000_000.0, 12.5)

ERRORS: dict[DibsError, tuple[str, ...]] = {
    NotAcquired("invoice", HOLDER, 1.25): ("'invoice'", "1.25 s", "host-a", "pid 42", "anna", "nightly", "fence 7"),
    NotAcquired("invoice", None, 0.0): ("'invoice'", "whom the store does not name"),
    NotAcquired("invoice", None, 0.00177): ("'invoice' was not acquired: it",),
    NotAcquired("invoice", None, 2.3456): ("'invoice' was not acquired after 2.35 s: it",),
    NotAcquired("invoice", None, 2.5, "its lock-delay runs"): ("after 2.5 s: its lock-delay runs",),
    NotAcquired("invoice", None, 1200.0): ("'invoice' was not acquired after 1200 s: it",),
    LeaseLost("invoice", 7, LossReason.EVICTED): ("'invoice'", "fence 7", "evicted", "stop the work"),
    KeyReused("charge:42", 7): ("'charge:42'", "fence 7", "take a new key"),
    StaleFence("invoice", 7, 9): ("'invoice'", "fence 7", "fence 9", "acquire the lock again"),
    StaleFence("invoice", 7, 7): ("'invoice'", "fence 7", "of the same grant"),
    GuardMissing("invoice", "dibs_guard has no row for it"): ("'invoice'", "cannot be told", "no row for it"),
    Changed("account id=42", 3, 5): ("account id=42", "version 5", "not 3", "read it again"),
    Deleted("account id=42", 3): ("account id=42", "not there any more", "version 3"),
    StoreUnavailable("redis://h", "connection refused"): ("redis://h", "connection refused"),
    StoreUnavailable("redlock:", "no quorum", {"h1": OSError("down"), "h2": TimeoutError("slow")}): (
        *("no quorum", "h1: down", "h2: slow"),
    ),
    OutcomeUnknown("redis://h", "no answer within 1 s"): ("redis://h", "is not known", "no answer within 1 s"),
    Skipped("report", "2026-11-29T03:00:00Z", SkipReason.ALREADY_RAN, "at 03:00, by host-a pid 42"): (
        *("'report'", "slot 2026-11-29T03:00:00Z", "already ran", "host-a pid 42"),
    ),
    Misuse("ttl=0: it must be more than 0 seconds"): ("ttl=0",),
    NotSupported("this store cannot hand a lease over; take redis:"): ("take redis:",),
}


def identity(error: DibsError) -> str:
    return type(error).__name__


@pytest.mark.parametrize(("error", "facts"), ERRORS.items(), ids=lambda value: getattr(type(value), "__name__", ""))
def test_an_error_says_its_facts(error: DibsError, facts: tuple[str, ...]) -> None:
    said = str(error)
    assert all(fact in said for fact in facts), said
    assert said == said.strip()
    assert "\n" not in said


@pytest.mark.parametrize("error", ERRORS, ids=identity)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_can_be_pickled(error: DibsError, protocol: int) -> None:
    error.add_note("seen on the way")
    twin = pickle.loads(pickle.dumps(error, protocol))
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert twin.__notes__ == error.__notes__
    facts = {name: value for name, value in vars(error).items() if name not in {"causes", "__notes__"}}
    assert {name: getattr(twin, name) for name in facts} == facts
    if isinstance(error, StoreUnavailable):
        assert isinstance(twin, StoreUnavailable)
        assert [*map(str, twin.causes.values())] == [*map(str, error.causes.values())]
    assert str(copy.copy(error)) == str(error)


def test_every_error_is_in_this_list() -> None:
    known = {thing for thing in vars(errors).values() if isinstance(thing, type) and issubclass(thing, DibsError)}
    assert {type(error) for error in ERRORS} == known - {DibsError}


@pytest.mark.parametrize("name", [name for name in dibs.__all__ if isinstance(getattr(dibs, name), type)])
def test_every_public_class_says_what_it_is(name: str) -> None:
    assert len((getattr(dibs, name).__doc__ or "").split()) >= 4


def test_bad_values_can_be_caught_as_value_errors() -> None:
    assert issubclass(Misuse, ValueError)
    assert not issubclass(StoreUnavailable, ValueError)


def test_busy_is_never_caught_as_unavailable() -> None:
    assert not issubclass(NotAcquired, StoreUnavailable)
    assert issubclass(OutcomeUnknown, StoreUnavailable)


@pytest.mark.parametrize(
    "facts",
    [
        HOLDER,
        LockState("invoice", 7, HOLDER, (HOLDER._replace(fence=0),), Eviction(6, "hangs", "anna on host-a pid 1", 1.0)),
    ],
    ids=["Holder", "LockState"],
)
def test_what_is_shown_can_be_pickled(facts: object) -> None:
    assert pickle.loads(pickle.dumps(facts)) == facts
