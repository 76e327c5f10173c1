"""What error replies mean."""

from __future__ import annotations

import pytest

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.ports.redis_errors import NOT_DONE, refused


@pytest.mark.parametrize("code", NOT_DONE)
def test_what_the_server_refused_before_it_did_anything_is_certainly_not_done(code: str) -> None:
    error = refused("host:6379", f"{code} and what the server says")
    assert type(error) is StoreUnavailable
    assert "what the server says" in error.problem


@pytest.mark.parametrize("text", ["ERR unknown command 'EVALSHA'", "ERR max number of clients reached"])
def test_some_errors_without_a_code_of_their_own_are_certain_too(text: str) -> None:
    assert type(refused("host:6379", text)) is StoreUnavailable


@pytest.mark.parametrize("text", ["ERR something new", "UNKILLABLE", "NOTBUSY", "OOMPH", "ERR Error running script"])
def test_what_we_do_not_know_may_have_happened(text: str) -> None:
    assert type(refused("host:6379", text)) is OutcomeUnknown
