"""What ZooKeeper's answers mean, without a server."""

from __future__ import annotations

import pytest
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.protocol.states import ZnodeStat

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.runtime import run
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.zookeeper.port.requests import No, Node, Replies, SessionEnded, sure

STAT = ZnodeStat(7, 8, 1500, 2500, 3, 0, 0, 99, 0, 0, 7)

NODE = Node(b"", 7, 99, 1.5, 2.5, 3)


def replies_of(*values: object, wanted: int | None = None) -> Replies:
    replies = Replies(len(values) if wanted is None else wanted, ThreadRuntime().event(), "zookeeper://h")
    for value in values:
        replies.set_exception(value) if isinstance(value, Exception) else replies.set(value)
    return replies


def test_nodes_come_with_what_the_server_knows_of_them() -> None:
    made, read, names, two = replies_of(("/a", STAT), (b"x", STAT), ["a"], ["a", "b"]).answers()
    assert made == ("/a", NODE)
    assert read == NODE._replace(data=b"x")
    assert (names, two) == (["a"], ["a", "b"])


def test_what_is_to_be_expected_is_an_answer_and_no_error() -> None:
    assert replies_of(NoNodeError(), NodeExistsError()).answers() == [No.NODE, No.ROOM]
    [transaction] = replies_of([RolledBackError(), NoNodeError(), RuntimeInconsistency()]).answers()
    assert transaction == [No.EFFECT, No.NODE, No.EFFECT]


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ConnectionLoss(), OutcomeUnknown, "the connection broke"),
        (ConnectionClosedError(), OutcomeUnknown, "the connection broke"),
        (SessionExpiredError(), SessionEnded, "the session has ended"),
        (NoAuthError(), StoreUnavailable, "NoAuthError"),
    ],
)
def test_an_error_says_whether_it_may_have_happened(error: Exception, kind: type[Exception], words: str) -> None:
    [answer] = replies_of(error).answers()
    assert type(answer) is kind
    assert words in str(answer)
    with pytest.raises(kind):
        sure([No.NODE, answer])


def test_answers_that_did_not_come_are_unknown_and_those_before_them_are_known() -> None:
    replies = replies_of(("/a", STAT), wanted=2)
    assert not replies.complete
    assert not run(replies.wait(0.01))
    made, missing = replies.answers()
    assert made == ("/a", NODE)
    assert type(missing) is OutcomeUnknown
    replies.set(["a"])
    assert run(replies.wait(0))
    assert replies.answers() == [("/a", NODE), ["a"]]
