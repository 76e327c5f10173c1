"""A guarded write in etcd, as bodies and answers: what is sent, and what an answer means. Real ones: tests/stores."""

from __future__ import annotations

from base64 import b64decode
from typing import Any, NamedTuple

import pytest

import dibs
from dibs.errors import Misuse, NotSupported, StaleFence
from dibs.guards import etcd
from dibs.stores.etcd.keys import EtcdNaming
from dibs.stores.etcd.requests import created_at


class Lease(NamedTuple):
    """A lease as the guard sees it."""

    name: str = "L/x"
    fence: int = 9

    def compare(self) -> object:
        return created_at(EtcdNaming("default").key(self.name, "t1"), self.fence)


def test_all_steps_are_done_under_the_condition_or_none() -> None:
    body = etcd.guarded(Lease(), etcd.put("/a", "1"), etcd.put("/b", b"\xff"))
    [condition] = body["compare"]
    assert (b64decode(condition["key"]), condition["create_revision"]) == (b"dibs/locks/default/L%2Fx/t1", "9")
    assert [b64decode(step["request_put"]["value"]) for step in body["success"]] == [b"1", b"\xff"]
    line, own = [step["request_range"] for step in body["failure"]]
    assert own["key"] == condition["key"]
    assert (b64decode(line["key"]), b64decode(line["range_end"])) == (
        b"dibs/locks/default/L%2Fx/",
        b"dibs/locks/default/L%2Fx0",
    )


def answer(revision: str, first: str = "", own: str = "") -> dict[str, Any]:
    found = [{"kvs": [{"create_revision": created}]} if created else {} for created in (first, own)]
    return {"header": {"revision": revision}, "responses": [{"response_range": it} for it in found]}


def test_an_answer_says_whether_the_lease_was_over_and_who_has_the_lock_now() -> None:
    etcd.check(Lease(), {"succeeded": True})
    for first in ("9", "7"):  # or another that has a part of the lock too
        etcd.check(Lease(), answer("20", first, own="9"))  # a condition of the caller's own was not met
    for stale, current in ((answer("20", "12"), 12), (answer("20", "7", own="12"), 12), (answer("20"), 20)):
        with pytest.raises(StaleFence) as refused:
            etcd.check(Lease(), stale)
        assert (refused.value.name, refused.value.fence, refused.value.current) == ("L/x", 9, current)


@pytest.mark.parametrize("wrong", [{}, {"error": "no"}, {"responses": []}, {"header": {}, "responses": [{}]}])
def test_what_is_no_answer_is_misuse_and_not_a_yes(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match="no answer"):
        etcd.check(Lease(), wrong)


def test_a_lease_of_another_store_is_refused() -> None:
    class Other(Lease):
        def compare(self) -> object:
            return "something else"

    with pytest.raises(Misuse, match="not one of etcd"):
        etcd.guarded(Other(), etcd.put("/a", "1"))
    with (
        dibs.connect("memory:") as client,
        client.lock("a") as lease,
        pytest.raises(NotSupported, match="no condition"),
    ):
        etcd.guarded(lease, etcd.put("/a", "1"))
