"""A lease as text survives every place that text goes through."""

from __future__ import annotations

import json
import math
import re
import shlex
from urllib.parse import parse_qs, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as some

from core.worlds import Untouchable
from dibs.core.client import Client
from dibs.core.handover import from_text, to_text
from dibs.errors import NotSupported
from dibs.runtime import run
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.guarantees import Ability
from dibs.stores.store import Claim

TEXT = some.text(some.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
CLAIMS = some.builds(
    Claim,
    TEXT,
    TEXT,
    some.integers(1, 2**63 - 1),
    some.floats(0.001, 10**8, allow_nan=False, allow_infinity=False),
    longest=some.just(math.inf),
)


@given(CLAIMS, some.one_of(some.just(""), TEXT))
def test_what_is_read_is_what_was_written(claim: Claim, note: str) -> None:
    assert from_text(to_text(claim, note)) == (claim, note)


@given(CLAIMS, some.one_of(some.just(""), TEXT))
def test_the_text_is_one_word_wherever_it_goes(claim: Claim, note: str) -> None:
    text = to_text(claim, note)
    assert re.fullmatch(r"[A-Za-z0-9%:._~+-]+", text)
    assert shlex.split(text) == [text]
    assert json.loads(json.dumps(text)) == text
    assert parse_qs(urlencode({"lease": text}))["lease"] == [text]


def test_spaces_and_line_ends_around_it_do_no_harm() -> None:
    claim = Claim("a b:c", "0" * 32, 7, 30.0)
    assert from_text(f"  {to_text(claim, '')}\n") == (claim, "")


@given(some.text(max_size=80))
def test_any_other_text_is_misuse_and_nothing_else(text: str) -> None:
    for candidate in (text, f"dibs1:{text}"):
        try:
            from_text(candidate)
        except ValueError as refused:
            assert type(refused).__name__ == "Misuse"  # noqa: PT017 - hypothesis tries texts that are leases, too


def test_a_store_that_cannot_hand_over_says_so_before_anything_is_sent() -> None:
    """`LeaseLost` would be no answer: the lease may well be held, by the session that took it."""

    class OfOneSession(Untouchable):
        guarantees = Untouchable.guarantees._replace(cannot={Ability.HANDOVER: "a lock belongs to one session"})

    client, text = Client(OfOneSession(), ThreadRuntime()), to_text(Claim("a", "token", 7, 30.0), "")
    for step in (client.resume, client.renew):
        with pytest.raises(NotSupported, match="no hand-over: a lock belongs to one session"):
            run(step(text))
