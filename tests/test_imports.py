"""Which module may import what: the rules first, then the code that holds dibs to them.

The order of the layers is in `tools/layers.py`; `make layers` draws them.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from layers import LAYERS, SRC, arrows, circles, imports, is_port, layer, modules, sources, technology

TESTS = Path(__file__).parent

BUILDS_ON = {"redlock": {"redis"}}
"""Which technology may import from another one. The layers `runtime`, `ports` and `core` import from none."""

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
    "a port: dibs/ports, or the folder port of the technology",
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
    "test_busy.py": "tests/busy.py: which test is run again",
    "test_docs.py": "README.md and docs/",
    "test_examples.py": "examples/",
    "test_project.py": "Makefile, .ci/ and packaging",
    "test_selection.py": "tests/selection.py: which tests a run takes",
    "test_tempo.py": "tests/tempo.py: how long something took",
    "test_tries.py": "tests/tries.py: what the contract measured again",
}
"""Tests that belong to no single source file, and what they belong to; a directory stands for all in it."""


def violations(module: str, source: str) -> Iterator[str]:
    """What is wrong with the imports of one module, each with what to do about it."""
    for name, line in imports(source):
        where = f"{module}, line {line}"
        if name.partition(".")[0] == "dibs" and layer(name) > layer(module):
            yield (
                f"{where}: imports {name}, which is above it. {LAYERS[layer(module)]} may import from "
                f"{', '.join(LAYERS[: layer(module) + 1])}: move the code down, or hand it in as an argument"
            )
        if wrong := foreign(module, name):
            yield f"{where}: {wrong}"
        for package, forbidden in FORBIDDEN.items():
            for banned, instead in forbidden.items():
                if (
                    not is_port(module)
                    and f"{module}.".startswith(f"{package}.")
                    and f"{name}.".startswith(f"{banned}.")
                ):
                    yield f"{where}: {package} does not import {banned}; use {instead}"


def foreign(module: str, name: str) -> str:
    """What is wrong if *module* imports *name* from a technology that it must not know, or nothing."""
    own, other = technology(module), technology(name)
    if other in {"", own} or other in BUILDS_ON.get(own, ()):
        return ""
    if own:
        return f"{own} does not import from {other}; move what both need to dibs.stores or dibs.ports"
    if layer(module) in {LAYERS.index(low) for low in ("runtime", "ports", "core")}:
        return f"{LAYERS[layer(module)]} knows no technology, so not {other}"
    return ""


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
        ("dibs.stores.redis.store", "from time import monotonic", "use Runtime.now"),
        ("dibs.stores.sqlite.store", "import sqlite3", "use a port"),
        ("dibs.stores.sqlite.store", "import os\nos.urandom(16)", "line 2: dibs.stores does not import os.urandom"),
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
        ("dibs.stores.sqlite.store", "import os\nos.open('x', os.O_RDONLY)\nfrom dibs.ports.sql import connect"),
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


def test_no_circle_between_files_also_for_type_checking() -> None:
    """No two files import each other, directly or through others: each can be read once those below it are known."""
    rings = circles(arrows(sources()))
    assert not rings, f"in a circle: {rings}; let the lower file own a protocol, or move down what both need"


@pytest.mark.parametrize(
    "source", ["from b import B", "def f():\n    import b", "if TYPE_CHECKING:\n    from b import B"]
)
def test_a_circle_is_found(source: str) -> None:
    """A circle through three files is found, wherever in the file the import stands; a file beside it is not in it."""
    texts = {"a": source, "b": "import c", "c": "import a", "d": "import a"}
    assert circles(arrows(texts)) == [["a", "b", "c"]]


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
