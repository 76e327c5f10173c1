"""Which job a file of a store has: in each technology the same name stands for the same job.

`docs/architecture.md` shows this as a table. A name that three technologies have needs a line here.
"""

from __future__ import annotations

from pathlib import Path

STORES = Path(__file__).parent.parent / "src" / "dibs" / "stores"

JOBS = {
    "store": "the steps that the core calls, one method each, and what the store guarantees",
    "keys": "from the name of a lock to what it is called in the server",
    "schema": "the tables, and how they are made",
    "scripts": "what the server does in one step, in Lua",
    "sql": "the statements",
    "values": "what is written into keys or rows, and how it is read back",
    "attempt": "one ask on its way to a grant",
    "asking": "which requests an ask and a release consist of, and when each is sent",
    "grant": "how a lock is given out",
    "sessions": "the sessions of one client, on which its leases live",
    "holdings": "what one client holds and waits for in its sessions",
    "lease": "what happens to a grant afterwards: renewed, handed over, given back",
    "renewal": "how many grants are renewed together",
    "watch": "how a grant ends without being given back",
    "waiting": "how a waiter waits, and is called",
    "queue": "who is next",
    "tickets": "what one client has in the queues: each ask that waits, holds, or may still arrive",
    "shares": "shared locks and semaphores: several holders of one name",
    "records": "what a holder leaves for those who come later",
    "view": "what people are shown by `dibs ls` and `dibs show`",
    "facts": "what is written down for people, and how it is read back",
    "rights": "what a user of the server has to be allowed",
    "options": "the options that a URL may have",
    "port/source": "where the server is, from a URL or from a client of the driver that the caller has",
    "port/dial": "how a connection is opened, and what is asked first on it, such as the server's version",
    "port/connection": "one connection",
    "port/session": "one session with the server",
    "port/errors": "what an error of the driver means: not done, or not known; and what to do about it",
}
"""Name of a file without `.py` to its job, in the order in which a store is read."""


def places() -> dict[str, list[str]]:
    """Each file name of a technology to the folders that have it."""
    found = dict[str, list[str]]()
    for file in sorted(STORES.rglob("*.py")):
        folder = file.parent.relative_to(STORES)
        if folder.parts and file.stem != "__init__":
            port = folder.name == "port"
            technology = folder.parent if port else folder
            found.setdefault(f"port/{file.stem}" if port else file.stem, []).append(technology.as_posix())
    return found


def rows() -> list[list[str]]:
    """The table: file, job, and the technologies that have it, for each file that at least two have."""
    found = {name: folders for name, folders in places().items() if len(folders) > 1}
    return [["file", "its job", "in"]] + [
        [f"`{name}.py`", job, ", ".join(found[name])] for name, job in JOBS.items() if name in found
    ]


def without_job() -> list[str]:
    """Names that at least three technologies have, and that JOBS does not explain."""
    return [name for name, folders in places().items() if len(folders) > 2 and name not in JOBS]
