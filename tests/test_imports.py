"""Which module may import what: the rules first, then the code that holds dibs to them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).parent.parent / "src"
TESTS = Path(__file__).parent

LAYERS = [
    *("holder", "errors", "part", "runtime", "ports", "stores", "core"),
    *("guards", "asgi", "optimistic", "postgres", "faces", "cli", "__main__", "django", "testing"),
]
"""From the bottom to the top: a module imports from its own layer and from those before it. A layer is what
stands directly under `dibs`; all of FACES, modules and packages, are the layer `faces`."""

FACES = {"dibs", "dibs.aio", "dibs._blocking", "dibs._async"}

CLOCKS_AND_CHANCE = {
    "time": "Runtime.now and Runtime.sleep",
    "datetime.datetime": "Runtime.now, or the store's clock",
    "os.times": "Runtime.now",
    "random": "Runtime.random",
    "secrets": "Runtime.token",
    "uuid": "Runtime.token",
    "os.urandom": "Runtime.token",
}
CONCURRENCY = {
    "asyncio": "the runtime",
    "threading": "Runtime.mutex, event and spawn",
    "_thread": "Runtime.mutex, event and spawn",
    "concurrent": "Runtime.spawn",
    "multiprocessing": "Runtime.spawn",
    "select": "Runtime.readable",
    "selectors": "Runtime.readable",
    "signal": "the cli",
    "subprocess": "the cli",
    "atexit": "Runtime.at_exit",
    "os.fork": "the cli",
    "os.register_at_fork": "Runtime.after_fork",
}
DRIVERS = dict.fromkeys(
    ["socket", "ssl", "http", "urllib.request", "sqlite3", "redis", "psycopg", "kazoo", "h11", "httpx", "httpx2"],
    "a port, in dibs/ports",
)

FORBIDDEN = {
    "dibs.core": CLOCKS_AND_CHANCE | CONCURRENCY | DRIVERS,
    "dibs.stores": CLOCKS_AND_CHANCE | CONCURRENCY | DRIVERS,
}
"""Package to what it must not import, and what to use instead. The simulated runtime owns time, order and
chance, so that every run can be repeated from its seed; what comes in beside it cannot be repeated.
TYPE_CHECKING is no excuse: whoever needs the type needs the thing."""

STARTUP = {"asyncio", "dataclasses", "inspect", "logging", "sqlite3", "importlib.metadata"}
"""What `import dibs` must not load: `dibs run` may cost 60 ms over the command it guards, and each of these
takes a part of that."""

NOT_MIRRORED = {
    "contract": "dibs.testing.contract, on every store in every runtime",
    "interop": "other programs that share keys with us",
    "processes": "the whole, in real processes",
    "servers": "what starts real servers for the tests",
    "simulation": "the whole, in many seeded histories",
    "test_imports.py": "the rules of this file",
    "test_loops.py": "all loops that clean up after Ctrl-C",
    "test_docs.py": "README.md and docs/",
    "test_examples.py": "examples/",
    "test_project.py": "Makefile, .ci/ and packaging",
}
"""Tests that belong to no single source file, and what they belong to; a directory stands for all in it."""


class Import(NamedTuple):
    """One name that a module imports, or reaches through a module it imports (``os.urandom``)."""

    name: str
    line: int


def modules() -> dict[str, Path]:
    """Every module of dibs by its dotted name."""
    return {module_name(path): path for path in sorted((SRC / "dibs").rglob("*.py"))}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def imports(source: str) -> Iterator[Import]:
    """Everything that *source* imports, at its top or inside functions and conditions."""
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                imported.add(alias.asname or alias.name)
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: import by the full name, `from dibs…`"
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", node.lineno)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            yield Import(f"{node.value.id}.{node.attr}", node.lineno)


def layer(name: str) -> int:
    """The place in LAYERS of a dotted name of ours: a module, or something in one."""
    top = ".".join(name.split(".")[:2])
    own = top.removeprefix("dibs.")
    if top in FACES or (own not in LAYERS and top not in modules()):
        own = "faces"  # the package dibs itself, and what it re-exports
    assert own in LAYERS, f"{top}: give it a place in LAYERS, at the top of tests/test_imports.py"
    return LAYERS.index(own)


def violations(module: str, source: str) -> Iterator[str]:
    """What is wrong with the imports of one module, each with what to do about it."""
    for name, line in imports(source):
        where = f"{module}, line {line}"
        if name.partition(".")[0] == "dibs" and layer(name) > layer(module):
            yield (
                f"{where}: imports {name}, which is above it. {LAYERS[layer(module)]} may import from "
                f"{', '.join(LAYERS[: layer(module) + 1])}: move the code down, or hand it in as an argument"
            )
        for package, forbidden in FORBIDDEN.items():
            for banned, instead in forbidden.items():
                if f"{module}.".startswith(f"{package}.") and f"{name}.".startswith(f"{banned}."):
                    yield f"{where}: {package} does not import {banned}; use {instead}"


@pytest.mark.parametrize("module", modules())
def test_imports_point_one_way(module: str) -> None:
    """No module imports from a layer above its own, and core and stores know no clock, thread or driver."""
    wrong = list(violations(module, modules()[module].read_text(encoding="utf-8")))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("dibs.core.lease", "import dibs.cli.run", "imports dibs.cli.run, which is above it"),
        ("dibs.core.lease", "from dibs import connect", "imports dibs.connect, which is above it"),
        ("dibs.ports.sql", "from dibs.stores import Store", "imports dibs.stores.Store, which is above it"),
        ("dibs.core.lease", "import asyncio", "dibs.core does not import asyncio"),
        ("dibs.stores.redis", "from time import monotonic", "use Runtime.now"),
        ("dibs.stores.sqlite", "import sqlite3", "use a port"),
        ("dibs.stores.sqlite", "import os\nos.urandom(16)", "line 2: dibs.stores does not import os.urandom"),
        ("dibs.stores", "def f():\n    import threading", "line 2: dibs.stores does not import threading"),
        (
            "dibs.core.x",
            "if TYPE_CHECKING:\n    from asyncio import Task",
            "dibs.core does not import asyncio",
        ),
    ],
)
def test_a_wrong_import_is_reported(module: str, source: str, complaint: str) -> None:
    """The rules bite: each kind of wrong import is found, at any depth, with its line."""
    assert complaint in "\n".join(violations(module, source))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dibs.core.lease", "from dibs.stores import Store\nfrom dibs.errors import Misuse"),
        ("dibs.core.lease", "from datetime import timedelta"),
        ("dibs.stores.sqlite", "import os\nos.open('x', os.O_RDONLY)\nfrom dibs.ports.sql import connect"),
        ("dibs.runtime.threads", "import threading, time"),
        ("dibs.cli.run", "import signal\nimport dibs\nfrom dibs.stores import open_store"),
        ("dibs.aio", "from dibs.core.lock import Lock\nfrom dibs.errors import DibsError"),
    ],
)
def test_a_right_import_is_not_reported(module: str, source: str) -> None:
    """The rules leave alone what they allow."""
    assert list(violations(module, source)) == []


@pytest.mark.parametrize("module", [name for name, path in modules().items() if path.name == "__init__.py"])
def test_packages_only_re_export(module: str) -> None:
    """An `__init__.py` says what its package offers; what it is stands in a file with a name."""
    tree = ast.parse(modules()[module].read_text(encoding="utf-8"))
    own = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    assert all(is_docstring(node) or is_all(node) for node in own), "move definitions to a module of their own"


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).strip("_") in {"all", "version"}


def test_importing_dibs_is_cheap() -> None:
    """`import dibs` loads no event loop, no driver and none of the slow parts of the standard library."""
    loaded = loaded_by("import dibs") - loaded_by("")
    assert "dibs" in loaded
    slow = loaded & STARTUP
    assert not slow, f"import {', '.join(sorted(slow))} inside the function that needs it"


def test_an_expensive_import_is_seen() -> None:
    """The check of the start-up cost sees what a module loads indirectly."""
    assert "logging" in loaded_by("import asyncio")


def loaded_by(statement: str) -> set[str]:
    """What a fresh interpreter has loaded after *statement*."""
    report = f"import sys, json; {statement or 'pass'}; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-I", "-c", report], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_tests_mirror_the_source() -> None:
    """Each `tests/x/test_y.py` or `test_y_aspect.py` is about `src/dibs/x/y.py`: both are found from each other."""
    lost = [
        test
        for test in (path.relative_to(TESTS) for path in sorted(TESTS.rglob("test_*.py")))
        if not is_mirrored(test) and not any(str(part) in NOT_MIRRORED for part in [test, *test.parents])
    ]
    assert not lost, f"{[str(test) for test in lost]}: name it after a source file, or add it to NOT_MIRRORED"


def is_mirrored(test: Path) -> bool:
    words = test.stem.removeprefix("test_").split("_")
    subjects = ["_".join(words[:end]) for end in range(1, len(words) + 1)]
    beside = SRC / "dibs" / test.parent
    return any(
        (beside / name).exists() for it in subjects for name in (it, f"_{it}", f"{it}.py", f"_{it}.py", f"{it}_.py")
    )
