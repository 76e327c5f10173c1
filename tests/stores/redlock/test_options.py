"""What a URL of a Redlock may say, and that it fits together."""

from __future__ import annotations

import pytest

from dibs.errors import Misuse
from dibs.stores.redlock.options import RedlockOptions, checked, from_redlock_url

NODES = "redlock://h1,h2:6380,h3/2"


def options(query: str) -> RedlockOptions:
    return from_redlock_url(NODES + query, blocking=True)[1]


def test_every_node_gets_user_database_and_what_is_not_ours() -> None:
    sources, ours = from_redlock_url("redlock://me:secret@h1,h2:6380,h3/2?client_name=web&drift=0.02", blocking=True)
    assert [str(source.addresses[0]) for source in sources] == ["h1:6379", "h2:6380", "h3:6379"]
    assert {source.login.options["password"] for source in sources} == {"secret"}
    assert {source.login.options["db"] for source in sources} == {2}
    assert {source.login.options["client_name"] for source in sources} == {"web"}
    assert ours == RedlockOptions(drift=0.02)


@pytest.mark.parametrize(
    "query",
    [
        "?drift=-0.1", "?drift=0.6", "?drift=nan", "?drift=fast", "?retry_delay=0", "?retry_delay=11", "?jitter=0",
        "?retry_delay=0.1&jitter=0.05", "?node_timeout=-1", "?node_timeout=60", "?lost_memory=ignore", "?durable=maybe",
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused_before_any_request(query: str) -> None:
    with pytest.raises(Misuse, match=query[1:].split("=", maxsplit=1)[0].replace("retry_delay", "retry_delay|jitter")):
        options(query)


def test_a_longer_retry_delay_comes_with_a_longer_jitter() -> None:
    assert options("?retry_delay=0.1").jitter == 0.4
    assert checked(options("?retry_delay=0.1&jitter=0.1")).jitter == 0.1


def test_one_node_never_uses_up_the_lease() -> None:
    for ttl in (0.3, 1.0, 30.0, 3600.0):
        assert options("").patience(ttl) <= ttl / 3
    assert options("?node_timeout=0.2").patience(1.0) == 0.2
    with pytest.raises(Misuse, match="a third of ttl"):
        options("?node_timeout=0.2").patience(0.5)


@pytest.mark.parametrize("drift", [0.0, 0.01, 0.05, 0.3])
def test_the_lease_ends_for_its_holder_before_a_node_whose_clock_runs_fast_lets_it_go(drift: float) -> None:
    kept = RedlockOptions(drift=drift).kept_for(30.0)
    assert kept >= 30.0, "never shorter than what was asked for"
    slowest = min(drift, 0.01) if drift <= 0.01 else drift
    assert kept * (1 - slowest) + 1e-9 >= 30.0 * 0.99


@pytest.mark.parametrize("node", ["redis+cluster://h3", "redis+sentinel://h3/service/0"])
def test_a_node_that_fails_over_by_itself_is_refused(node: str) -> None:
    from dibs.stores.redlock.options import sources_of  # noqa: PLC0415

    with pytest.raises(Misuse, match="is one server"):
        sources_of(["redis://h1", "redis://h2", node], blocking=True)
