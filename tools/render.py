"""Writes the parts of the docs that come from the code, between marker comments.

    <!-- rendered: guarantees -->          what each built-in store declares
    <!-- rendered: dibs run --help -->     what a command prints
    <!-- rendered: rights redis -->        what a user of Redis has to be allowed
    <!-- rendered: layers -->              the picture of the layers
    <!-- rendered: file names -->          which job a file of a store has
    <!-- rendered end -->

`make fix` writes them. With ``--check`` (in `make check`) nothing is written, and it is an error if a page is stale or
names a file or a module of ours that does not exist.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import jobs
import layers
import paths
from dibs.stores import Guarantees, Promise, Store
from dibs.stores.redis import rights as redis_rights
from dibs.stores.redlock import rights as redlock_rights
from dibs.stores.registry import BUILT_IN

ROOT = Path(__file__).parent.parent
PART = re.compile(r"(?P<open><!-- rendered: (?P<what>.+?) -->\n).*?(?P<close><!-- rendered end -->)", re.S)

EVENTS = {
    "client_pause": "the holder stands still past its ttl (SIGSTOP, swap, a suspended machine)",
    "client_crash": "the holder is killed",
    "server_restart": "the server restarts",
    "failover": "the server fails over to another",
    "partition": "the network between holder and server is cut",
    "clock_jump": "a wall clock jumps",
}
"""Field of `Guarantees` to what it means to a reader, in the order of the page."""


def pages() -> list[Path]:
    """Every Markdown page that people read."""
    built = ROOT / "docs" / "_build"
    return sorted(ROOT.glob("*.md")) + [p for p in sorted(ROOT.glob("docs/**/*.md")) if built not in p.parents]


def stale() -> dict[Path, str]:
    """Pages whose rendered parts are not what the code says now, with the text they should have."""
    fresh = {page: fill(page.read_text(encoding="utf-8")) for page in pages()}
    return {page: text for page, text in fresh.items() if text != page.read_text(encoding="utf-8")}


def fill(text: str) -> str:
    """Render every marked part of a page."""
    return PART.sub(lambda part: f"{part['open']}{render(part['what'])}\n{part['close']}", text)


def render(what: str) -> str:
    """The Markdown for one marker."""
    if what == "guarantees":
        return guarantees([store.guarantees for store in built_in_stores()])
    if what == "layers":
        return f"```text\n{layers.picture(layers.sources())}\n```"
    if what == "file names":
        return "\n".join(rows(jobs.rows()))
    if what.startswith("rights "):
        return rights(what.removeprefix("rights "))
    if what.startswith("dibs "):
        return output_of(what)
    raise SystemExit(f"nothing renders {what!r}; see the top of tools/render.py")


def rights(of: str) -> str:
    """The line that allows a user what the functions of `dibs.stores.redis.rights` say, and that of Redlock."""
    known = {**vars(redis_rights), **vars(redlock_rights)}
    rules = " ".join(known[each]() for each in of.split())
    return f"```text\nACL SETUSER locks on >secret {rules}\n```"


def built_in_stores() -> list[type[Store]]:
    """The store classes behind the built-in URL schemes, each once."""
    modules = dict.fromkeys(BUILT_IN.values())
    found = [thing for module in modules for thing in vars(importlib.import_module(module)).values()]
    ours = [t for t in found if isinstance(t, type) and issubclass(t, Store) and t.__module__ in modules]
    return list(dict.fromkeys(store for store in ours if hasattr(store, "guarantees")))


def guarantees(declared: list[Guarantees]) -> str:
    """One table of effects, then each store's own words."""
    names = [f"`{each.name}`" for each in declared]
    table = [["event", "", *names]] + [
        [in_words(event), meaning, *(str(promise(each, event).effect) for each in declared)]
        for event, meaning in EVENTS.items()
    ]
    return "\n\n".join(["\n".join(rows(table)), *(one_store(each) for each in declared)])


def one_store(declared: Guarantees) -> str:
    """What one store says of itself."""
    facts = {
        "good for": declared.good_for,
        "fence": declared.fence,
        "a waiter wakes by": declared.wake,
        "next is": declared.order,
        "free after the holder died": declared.freed,
        "the next is served after a waiter was killed": str(declared.waiter_crash),
    }
    for event in EVENTS:
        effect, why = promise(declared, event)
        facts[f"{in_words(event)}, {effect}"] = why
    facts |= {f"cannot, {ability}": why for ability, why in declared.cannot.items()}
    return f"### `{declared.name}`\n\n" + "\n".join(f"- **{fact}**: {text}" for fact, text in facts.items())


def in_words(field: str) -> str:
    """A field's name as a reader sees it."""
    return field.replace("_", " ")


def promise(declared: Guarantees, event: str) -> Promise:
    """The promise of a store for one event."""
    found = getattr(declared, event)
    assert isinstance(found, Promise)
    return found


def rows(table: list[list[str]]) -> list[str]:
    """A Markdown table; the first row is its head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    return [lines[0], "|" + "---|" * len(table[0]), *lines[1:]]


def output_of(command: str) -> str:
    """What a command of ours prints, 100 columns wide and without colours."""
    program, *args = command.split()
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    beside_python = Path(sys.executable).parent / program
    done = subprocess.run([beside_python, *args], env=environment, capture_output=True, text=True, check=True)
    return f"```text\n{done.stdout.rstrip()}\n```"


def main(check: bool) -> int:
    """Write the stale pages, or only name them."""
    todo = stale()
    for page, text in todo.items():
        if check:
            print(f"{page.relative_to(ROOT)}: a rendered part is out of date; run `make fix`", file=sys.stderr)
        else:
            page.write_text(text, encoding="utf-8")
            print(f"rendered {page.relative_to(ROOT)}")
    lost = list(paths.all_lost(pages())) if check else []
    for sentence in lost:
        print(sentence, file=sys.stderr)
    return 1 if (check and todo) or lost else 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
