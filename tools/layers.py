"""The layers of dibs, drawn from its imports: which layer imports from which, and what breaks the order.

    python tools/layers.py      the picture and what each folder imports, then every arrow that points up and every
                                circle of files

An import counts wherever it stands: at the top, in a function, or under TYPE_CHECKING, since a reader follows it too.
`tests/test_imports.py` holds the code to this order, and `docs/architecture.md` shows the picture.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

SRC = Path(__file__).parent.parent / "src"

LAYERS = [
    *("log", "holder", "errors", "share", "runtime", "ports", "stores", "core"),
    *("guards", "asgi", "optimistic", "postgres", "faces", "cli", "__main__", "django", "testing"),
]
"""From the bottom to the top: a module imports from its own layer and from those before it. A layer is what
stands directly under `dibs`; all of FACES, modules and packages, are the layer `faces`."""

FACES = {"dibs", "dibs.aio", "dibs._blocking", "dibs._async"}

TECHNOLOGIES = {path.name for path in (SRC / "dibs" / "stores").iterdir() if (path / "__init__.py").exists()}
"""The folders of `dibs.stores`. In each, `port` talks to the driver and belongs to the layer `ports`."""

WIDTH = 100
"""Columns of the picture."""


class Import(NamedTuple):
    """One name that a module imports, or reaches through a module it imports (``os.urandom``)."""

    name: str
    line: int


class Arrow(NamedTuple):
    """One module of ours imports another one, in this line."""

    module: str
    imported: str
    line: int

    def __str__(self) -> str:
        above, below = LAYERS[layer(self.imported)], LAYERS[layer(self.module)]
        return f"{self.module}, line {self.line}: imports {self.imported}, and {above} is above {below}"


# --- what imports what -------------------------------------------------------------------------------------


@cache
def modules() -> dict[str, Path]:
    """Every module of dibs by its dotted name."""
    return {module_name(path): path for path in sorted((SRC / "dibs").rglob("*.py"))}


def module_name(path: Path) -> str:
    """The dotted name of a file below src."""
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def sources() -> dict[str, str]:
    """The text of every module."""
    return {name: path.read_text(encoding="utf-8") for name, path in modules().items()}


def imports(source: str) -> Iterator[Import]:
    """Everything that *source* imports, at its top or inside functions and conditions."""
    imported = set()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                imported.add(alias.asname or alias.name)
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: import by the full name, `from dibs…`"
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", node.lineno)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            yield Import(f"{node.value.id}.{node.attr}", node.lineno)


def arrows(texts: Mapping[str, str]) -> list[Arrow]:
    """Each import of one of these modules by another one, once."""
    found = dict[tuple[str, str], Arrow]()
    for module, text in texts.items():
        for name, line in imports(text):
            target = name if name in texts else name.rpartition(".")[0]
            if target in texts and target != module:
                found.setdefault((module, target), Arrow(module, target, line))
    return list(found.values())


# --- the order -----------------------------------------------------------------------------------------------


def technology(name: str) -> str:
    """The folder of `dibs.stores` that a dotted name of ours is in, or nothing."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["dibs", "stores"] and len(parts) > 2 and parts[2] in TECHNOLOGIES else ""


def is_port(name: str) -> bool:
    """Whether a dotted name of ours is in the port of a technology."""
    return bool(technology(name)) and "port" in name.split(".")[3:4]


def layer(name: str) -> int:
    """The place in LAYERS of a dotted name of ours: a module, or something in one."""
    if is_port(name):
        return LAYERS.index("ports")
    top = ".".join(name.split(".")[:2])
    own = top.removeprefix("dibs.")
    if top in FACES or (own not in LAYERS and top not in modules()):
        own = "faces"  # the package dibs itself, and what it re-exports
    assert own in LAYERS, f"{top}: give it a place in LAYERS, at the top of tools/layers.py"
    return LAYERS.index(own)


def upward(found: Iterable[Arrow]) -> list[Arrow]:
    """The arrows that point from a layer to one above it."""
    return [arrow for arrow in found if layer(arrow.imported) > layer(arrow.module)]


def circles(found: Iterable[Arrow]) -> list[list[str]]:
    """The groups of modules in which each one reaches every other one, each in alphabetical order."""
    after = dict[str, set[str]]()
    for module, imported, _ in found:
        after.setdefault(module, set()).add(imported)
        after.setdefault(imported, set())
    reach = {module: reached(module, after) for module in after}
    groups = {tuple(sorted(other for other in reach[it] if it in reach[other])) for it in after if it in reach[it]}
    return [list(group) for group in sorted(groups)]


def reached(start: str, after: Mapping[str, set[str]]) -> set[str]:
    """All that *start* imports, directly or through another one."""
    seen, todo = set[str](), list(after[start])
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo.extend(after[module])
    return seen


# --- the picture -----------------------------------------------------------------------------------------------


def picture(texts: Mapping[str, str]) -> str:
    """The layers as a wall: each stone imports from stones below it. ``→`` names those that it stands on directly."""
    below = imported_layers(arrows(texts))
    rows = [[stone(name, below, texts) for name in course] for course in courses(below)]
    lines = [border([], rows[0])]
    for place, row in enumerate(rows):
        lines += filled(row)
        lines.append(border(row, rows[place + 1] if place + 1 < len(rows) else []))
    return "\n".join(lines)


def imported_layers(found: Iterable[Arrow]) -> dict[str, set[str]]:
    """Each layer with the lower ones that it imports from."""
    below: dict[str, set[str]] = {name: set() for name in LAYERS}
    for arrow in found:
        if layer(arrow.imported) < layer(arrow.module):
            below[LAYERS[layer(arrow.module)]].add(LAYERS[layer(arrow.imported)])
    return below


def courses(below: Mapping[str, set[str]]) -> list[list[str]]:
    """The layers by their height over the ground, the highest first; side by side are those that can be."""
    height = dict[str, int]()
    for name in LAYERS:
        height[name] = 1 + max((height[lower] for lower in below[name]), default=0)
    return [[name for name in LAYERS if height[name] == each] for each in range(max(height.values()), 0, -1)]


def stone(name: str, below: Mapping[str, set[str]], texts: Iterable[str]) -> list[str]:
    """What is written on a layer: its name, on what it stands, and the folders inside of it."""
    through = {far for near in below[name] for far in reached(near, below)}
    stands_on = [lower for lower in LAYERS if lower in below[name] - through]
    title = f"{name} → {', '.join(stands_on)}" if stands_on else name
    return [title, *inside([module for module in texts if LAYERS[layer(module)] == name])]


def inside(members: Iterable[str]) -> list[str]:
    """The folders of a layer, and the modules of one that is made of several things side by side."""
    found = set[str]()
    for module in members:
        parts = module.split(".")
        if is_port(module):
            found.add("stores/*/port")
        elif module in FACES:
            found.add(module)
        elif parts[1] not in {"_blocking", "django"} and len(parts) > 2 and modules()[module].name == "__init__.py":
            found.add(parts[2])
    return sorted(found)


def widths(row: list[list[str]]) -> list[int]:
    """The columns inside of each stone: all of a row have the same, and the last one has the rest."""
    each = (WIDTH - 1) // len(row) - 1
    return [each] * (len(row) - 1) + [WIDTH - 2 - (each + 1) * (len(row) - 1)]


def filled(row: list[list[str]]) -> Iterator[str]:
    """The lines of one row of stones."""
    texts = [
        [title, *textwrap.wrap("  ".join(names), width - 2, break_long_words=False, break_on_hyphens=False)]
        for (title, *names), width in zip(row, widths(row), strict=True)
    ]
    for number in range(max(map(len, texts))):
        cells = [text[number] if number < len(text) else "" for text in texts]
        yield "│" + "│".join(f" {cell:<{width - 1}}" for cell, width in zip(cells, widths(row), strict=True)) + "│"


def border(above: list[list[str]], under: list[list[str]]) -> str:
    """The line between two rows; either may be missing."""
    up, down = edges(above), edges(under)
    return "".join(joint(column in up, column in down, column) for column in range(WIDTH))


def edges(row: list[list[str]]) -> set[int]:
    """The columns in which a row has a vertical line."""
    found, column = set[int](), 0
    for width in widths(row) if row else ():
        found |= {column, column + width + 1}
        column += width + 1
    return found


def joint(up: bool, down: bool, column: int) -> str:
    """The character of a border in *column*, by the lines that go up and down from it."""
    at = 0 if column == 0 else 2 if column == WIDTH - 1 else 1
    return {(True, True): "├┼┤", (True, False): "└┴┘", (False, True): "┌┬┐", (False, False): "───"}[up, down][at]


# --- the table -------------------------------------------------------------------------------------------------


def table(texts: Mapping[str, str]) -> str:
    """Each folder and each file in src/dibs: its files and lines, and the folders it imports from."""
    found: dict[str, set[str]] = {folder(module): set() for module in texts}
    for module, imported, _ in arrows(texts):
        found[folder(module)].add(folder(imported))
    lines = []
    for name in sorted(found):
        own = [text for module, text in texts.items() if folder(module) == name]
        size = f"{name:<24}{len(own):>3} files {sum(text.count(chr(10)) for text in own):>6,} lines   "
        gap = " " * len(size)
        lines += textwrap.wrap(size + "→ " + ", ".join(sorted(found[name] - {name})), 120, subsequent_indent=gap + "  ")
    return "\n".join(line.rstrip("→ ") for line in lines)


def folder(module: str) -> str:
    """The folder of a module below src/dibs; a module that stands there itself has its own name."""
    path = modules()[module].relative_to(SRC / "dibs")
    return str(path.parent) if path.parent.name else path.stem


def main() -> int:
    """Print the picture, the table, and what is wrong."""
    texts = sources()
    found = arrows(texts)
    up, rings = upward(found), circles(found)
    print(f"{picture(texts)}\n\n{table(texts)}\n\n{len(up)} arrows up, {len(rings)} circles of files")
    for arrow in up:
        print(f"  up: {arrow}")
    for ring in rings:
        print(f"  circle of {len(ring)}: {' '.join(ring)}")
    return 1 if up else 0


if __name__ == "__main__":
    sys.exit(main())
