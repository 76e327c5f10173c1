"""What the errors of an agent mean: nothing was done, it may have been done, or it is an answer."""

from __future__ import annotations

import pytest

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.ports.http.message import HttpAnswer
from dibs.stores.consul.port.agent import ConsulRefusal, cannot_serve


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (500, "No cluster leader", StoreUnavailable),
        (500, "rpc error making call: No cluster leader", StoreUnavailable),
        (500, "No known Consul servers", StoreUnavailable),
        (429, "Your IP is issuing too many concurrent connections", StoreUnavailable),
        (500, "leadership lost while committing log", OutcomeUnknown),
        (500, "rpc error making call: EOF", OutcomeUnknown),
        (503, "", OutcomeUnknown),
        (500, "Invalid Session TTL '5', must be between [10s=24h0m0s]", None),
        (200, "true", None),
        (403, "Permission denied", None),
        (404, "", None),
        (409, "{}", None),
    ],
)
def test_what_an_answer_says_of_the_agent(status: int, text: str, kind: type | None) -> None:
    found = cannot_serve(HttpAnswer(status, (), text.encode(), "agent:8500"))
    assert type(found) is (kind or type(None))


def test_why_a_transaction_was_refused() -> None:
    delay = ConsulRefusal({3: 'failed to lock key "a" due to lock delay'})
    session = ConsulRefusal({3: 'invalid session "b"', 0: 'failed to check index, key "c" doesn\'t exist'})
    assert (delay.by_delay, delay.by_session) == (True, False)
    assert (session.by_delay, session.by_session) == (False, True)
