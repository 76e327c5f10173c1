"""The door of a web application lets the newest fence through, and tells the others why not."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import Misuse
from dibs.guards import FenceMiddleware, MemoryGuard, TableGuard


class Answer:
    def __init__(self) -> None:
        self.status, self.headers, self.body = 0, dict[bytes, bytes](), b""

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.body += message["body"]

    @property
    def problem(self) -> Any:
        assert self.headers[b"content-type"] == b"application/problem+json"
        assert self.headers[b"content-length"] == str(len(self.body)).encode()
        document = json.loads(self.body)
        assert document["status"] == self.status
        return document


async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    """Answers with the fence that it finds."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": repr(scope.get("dibs.fence")).encode()})


async def nothing() -> MutableMapping[str, Any]:
    raise AssertionError("the body of the request is the application's")


def ask(
    door: FenceMiddleware, *tokens: object, path: str = "/account/42", method: str = "PUT", kind: str = "http"
) -> Answer:
    answer = Answer()
    headers = [(b"host", b"x"), *((b"fencing-token", str(token).encode()) for token in tokens)]
    scope = {"type": kind, "method": method, "path": path, "headers": headers}
    asyncio.run(door(scope, nothing, answer.send))
    return answer


def test_a_stale_token_is_answered_with_409_and_the_current_one() -> None:
    door = FenceMiddleware(app, MemoryGuard())
    assert ask(door, 17).body == b"17"
    assert ask(door, 18).body == b"18"
    assert ask(door, 18).status == 200
    refused = ask(door, 17)
    assert refused.status == 409
    assert refused.problem["current"] == 18
    assert refused.problem["fence"] == 17
    assert "17" in refused.problem["detail"]


def test_each_path_has_its_own_fences() -> None:
    door = FenceMiddleware(app, MemoryGuard())
    ask(door, 18, path="/account/42")
    assert ask(door, 17, path="/account/43").status == 200


def test_the_name_of_the_lock_is_told_from_the_request() -> None:
    door = FenceMiddleware(app, MemoryGuard(), name=lambda scope: scope["path"].split("/")[1])
    ask(door, 18, path="/account/42")
    assert ask(door, 17, path="/account/43").status == 409


@pytest.mark.parametrize(
    "token", ["", " ", "0", "-1", "+1", "1.0", "1e3", "0x10", "1_0", "x", "٣", "9" * 20, 2**63, "1, 2"]
)
def test_what_is_no_fence_is_answered_with_400(token: object) -> None:
    assert ask(FenceMiddleware(app, MemoryGuard()), token).problem["title"] == "Bad request for a fenced resource"


def test_two_tokens_are_answered_with_400() -> None:
    """Two parts of a chain may each take another one for the right one."""
    assert ask(FenceMiddleware(app, MemoryGuard()), 17, 18).status == 400


def test_a_path_that_is_no_name_is_answered_with_400() -> None:
    answer = ask(FenceMiddleware(app, MemoryGuard()), 17, path="/" + "x" * 1000)
    assert answer.status == 400
    assert "at most 1000 bytes" in answer.problem["detail"]


def test_a_missing_token_is_answered_as_configured() -> None:
    assert ask(FenceMiddleware(app, MemoryGuard())).problem["title"] == "Fencing token required"
    assert ask(FenceMiddleware(app, MemoryGuard(), missing=400)).status == 400
    assert ask(FenceMiddleware(app, MemoryGuard(), missing=None)).body == b"None"
    with pytest.raises(Misuse, match="missing=404"):
        FenceMiddleware(app, MemoryGuard(), missing=404)


def test_what_changes_nothing_passes() -> None:
    door = FenceMiddleware(app, MemoryGuard())
    assert ask(door, method="GET").status == 200
    assert ask(door, method="GET", kind="websocket").status == 0


def test_the_guard_may_be_a_table(tmp_path: Path) -> None:
    conn = sqlite3.connect(tmp_path / "data.db", check_same_thread=False)
    guard = TableGuard(create_rows=True)
    guard.create(conn)
    door = FenceMiddleware(app, guard.on(conn))
    assert [ask(door, fence).status for fence in (18, 17, 19)] == [200, 409, 200]
    conn.close()
