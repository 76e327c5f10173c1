"""The HTTP API of Consul as the store uses it: transactions, sessions, blocking queries, and what its errors mean.

Any agent can be asked anything; it passes requests on to the leader of its datacenter.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dibs.errors import Misuse, OutcomeUnknown, StoreUnavailable
from dibs.ports.http.client import Http
from dibs.ports.http.message import HttpAnswer, HttpHeaders, HttpRequest, json_body, target
from dibs.ports.http.source import HttpSource
from dibs.runtime import Runtime

NOBODY_LEADS = ("No cluster leader", "No known Consul servers", "failed to get conn", "not the leader", "No path to")
"""Errors of an agent that could not pass a request on: nothing was done."""

WAIT_JITTER = 1 / 16
"""The part by which Consul may lengthen the wait of a blocking query."""

TRAVEL = 0.05
"""Seconds of a wait that are kept for the way to the server and back."""

RIGHTS = "the token needs key_prefix write on the locks, and session_prefix write"
"""The advice for a request that Consul does not permit."""

Op = dict[str, dict[str, Any]]
"""One operation of a transaction, as JSON."""


class Entry(NamedTuple):
    """A key and its value, as they are in Consul."""

    key: str
    value: bytes
    session: str
    """The session that has locked it; empty if none has."""
    created: int
    """The index of the transaction that made the key."""
    modified: int
    """The index of the transaction that wrote it last."""


class ConsulRefusal(NamedTuple):
    """A transaction that was not carried out, with the errors of its operations."""

    said: Mapping[int, str]
    """The index of each operation that failed to its error."""

    @property
    def by_delay(self) -> bool:
        """Whether the lock-delay runs: the session of the last holder ended, and Consul keeps the key closed."""
        return any("lock delay" in text for text in self.said.values())

    def says_absent(self, index: int) -> bool:
        """Whether the operation at *index* failed because its key is not there."""
        return "doesn't exist" in self.said.get(index, "")

    @property
    def by_session(self) -> bool:
        """Whether the session of a lock operation has ended."""
        return any("invalid session" in text for text in self.said.values())


class Agent:
    """Sends requests to the agents of one datacenter, with one token."""

    def __init__(self, source: HttpSource, runtime: Runtime, token: str, datacenter: str) -> None:
        self._http = Http(source, runtime, cannot_serve)
        self._headers: HttpHeaders = (("X-Consul-Token", token),) if token else ()
        self._where = {"dc": datacenter} if datacenter else {}
        self._txn = target("/v1/txn", self._where)
        self._read = target("/v1/txn", {**self._where, "consistent": None})

    def __str__(self) -> str:
        return str(self._http)

    async def txn(
        self, ops: Sequence[Op], within: float, *, ordering_key: str = "", again: bool = False
    ) -> list[Entry] | ConsulRefusal:
        """Do all of *ops*, or none. With *again* they may be carried out twice, which then has to be safe.

        Requests with one *ordering_key* are carried out in the order in which they were sent.
        """
        return self._outcome(
            await self._ask("PUT", self._txn, within, json_body(ops), ordering_key=ordering_key, again=again)
        )

    async def read(self, ops: Sequence[Op], within: float) -> list[Entry] | ConsulRefusal:
        """Do *ops*, which only read.

        The read is consistent: the leader asks its followers whether it still leads. The lease of a leader that was cut
        off may outlive the election of the next, and in that time it may not see a new grant, or show one that is gone.
        """
        return self._outcome(await self._ask("PUT", self._read, within, json_body(ops), again=True))

    async def create_session(self, wanted: Mapping[str, Any], within: float) -> str:
        """Make a session and return its id; `Misuse` if the server refuses its ttl."""
        where = target("/v1/session/create", self._where)
        answer = await self._ask("PUT", where, within, json_body(wanted), accept=(500, 400))
        if answer.status != 200:
            raise Misuse(
                f"{answer.server} refuses a session of {wanted['TTL']}: {_text(answer)}; take a longer ttl, or set "
                "min_ttl in the URL to what the servers have as session_ttl_min"
            )
        return str(_object(answer)["ID"])

    async def renew_session(self, session: str, within: float) -> bool:
        """Let the ttl of *session* count from now; False if it has ended."""
        where = target(f"/v1/session/renew/{session}", self._where)
        answer = await self._ask("PUT", where, within, again=True, accept=(404,))
        return answer.status == 200

    async def never_ends(self, session: str, within: float) -> bool:
        """Whether *session* has no ttl; False as well if we may not know."""
        try:
            answer = await self._ask("GET", target(f"/v1/session/info/{session}", self._where), within, again=True)
            found = answer.json()
        except StoreUnavailable:
            return False
        return isinstance(found, list) and bool(found) and not found[0].get("TTL")

    async def destroy_session(self, session: str, within: float) -> None:
        """End *session*, and delete the keys that it has locked."""
        await self._ask("PUT", target(f"/v1/session/destroy/{session}", self._where), within, again=True)

    async def watch(self, key: str, index: int, within: float) -> bool:
        """Wait until *key* has changed since *index*; False if that does not happen *within* seconds.

        An index that goes back, as after the restore of a snapshot, is a change too: what was read before is void.
        """
        held = within - min(TRAVEL, within / 4)
        params = {**self._where, "index": str(index), "wait": f"{max(1, int(held / (1 + WAIT_JITTER) * 1000))}ms"}
        where = target(f"/v1/kv/{key}", params)
        try:
            answer = await self._ask("GET", where, within, again=True, accept=(404,), held=held)
        except OutcomeUnknown:
            return False
        return answer.status == 404 or int(answer.headers.get("x-consul-index", "0")) != index

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    def forked(self) -> None:
        """Forget the parent's connections."""
        self._http.forked()

    async def _ask(
        self,
        method: str,
        where: str,
        within: float,
        body: bytes = b"",
        *,
        again: bool = False,
        ordering_key: str = "",
        accept: tuple[int, ...] = (409,),
        held: float = 0.0,
    ) -> HttpAnswer:
        request = HttpRequest(method, where, body, self._headers, held)
        answer = await self._http.request(request, within, again=again, ordering_key=ordering_key)
        if answer.status != 200 and answer.status not in accept:
            raise StoreUnavailable(str(self), f"{answer.server} answered {answer.status}: {_advised(answer)}")
        return answer

    def _outcome(self, answer: HttpAnswer) -> list[Entry] | ConsulRefusal:
        said = _object(answer)
        if answer.status == 409:
            refused = ConsulRefusal({error["OpIndex"]: error["What"] for error in said["Errors"]})
            if any("Permission denied" in text for text in refused.said.values()):
                raise StoreUnavailable(str(self), f"{answer.server} answered: Permission denied; {RIGHTS}")
            return refused
        return [_entry(result["KV"]) for result in said["Results"] or ()]


def cannot_serve(answer: HttpAnswer) -> StoreUnavailable | None:
    """Why the agent that gave *answer* cannot serve any client now; None if it can."""
    if answer.status < 500 and answer.status != 429:
        return None
    text = _text(answer)
    if text.startswith("Invalid Session"):  # it says this with status 500
        return None
    certain = answer.status == 429 or any(words in text for words in NOBODY_LEADS)
    kind = StoreUnavailable if certain else OutcomeUnknown
    return kind(answer.server, f"it answered {answer.status}: {text}")


def _entry(found: Mapping[str, Any]) -> Entry:
    value = b64decode(found["Value"] or "")
    return Entry(found["Key"], value, found.get("Session", ""), found["CreateIndex"], found["ModifyIndex"])


def _object(answer: HttpAnswer) -> dict[str, Any]:
    """The JSON object of *answer*; `OutcomeUnknown` for anything else, which a proxy may have sent."""
    said = answer.json()
    if not isinstance(said, dict):
        raise OutcomeUnknown(answer.server, f"its answer is not one of Consul: {_text(answer)[:100]!r}")
    return said


def _text(answer: HttpAnswer) -> str:
    return answer.body.decode(errors="replace").strip()[:500]


def _advised(answer: HttpAnswer) -> str:
    text = _text(answer)
    if answer.status == 403:
        text += f"; {RIGHTS}"
    return text
