"""Writes the docstrings of the core into its blocking faces, so that editors and readers of the source see them too.

`make fix` writes them; with ``--check`` (in `make check`) nothing is written and a stale docstring is an error. A face
is a class of `dibs._blocking` that is marked ``@faces(...)``; what the core does not document keeps its own words.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parent.parent
FACES = ROOT / "src" / "dibs" / "_blocking"

CORE_NAMES = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__", "__next__": "__anext__"}
"""What a method of a face is called in the core, where that differs."""

Documented: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def stale() -> dict[Path, str]:
    """Files whose docstrings are not those of the core, with the text they should have."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(FACES.glob("*.py"))}
    fresh = {path: filled(text, f"dibs._blocking.{path.stem}") for path, text in texts.items()}
    return {path: text for path, text in fresh.items() if text != texts[path]}


def filled(text: str, module: str) -> str:
    """The source *text* of *module*, with the docstrings of the core in its faces."""
    lines = text.splitlines(keepends=True)
    for node, docstring in reversed(list(_wanted(ast.parse(text), module))):
        first = node.body[0]
        old = first if _docstring(node) is not None else None
        start = first.lineno - 1 - (_decorators(first) if old is None else 0)
        indent = " " * (node.col_offset + 4)
        gap = "\n" if isinstance(node, ast.ClassDef) and old is None else ""
        quoted = docstring.replace("\\", "\\\\")
        lines[start : old.end_lineno if old is not None else start] = [f'{indent}"""{quoted}"""\n{gap}']
    return "".join(lines)


def _wanted(tree: ast.Module, module: str) -> Iterator[tuple[Documented, str]]:
    """Each class and method that the core documents, from the top of the file to its end."""
    for face in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        core = _core_of(face, module)
        if core is None:
            continue
        documented = _documented(core)
        if (of_class := documented.get("")) is not None:
            yield face, of_class
        for method in face.body:
            if isinstance(method, ast.FunctionDef):
                name = CORE_NAMES.get(method.name, method.name)
                docstring = documented.get(name, documented.get(method.name))
                if docstring is not None:
                    yield method, docstring


def _core_of(face: ast.ClassDef, module: str) -> type | None:
    """The class that *face* is marked with."""
    for mark in face.decorator_list:
        if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "faces":
            core: type = eval(ast.unparse(mark.args[0]), vars(importlib.import_module(module)))  # noqa: S307 - our source
            return core
    return None


def _documented(core: type) -> dict[str, str]:
    """The docstrings of *core* as they stand in its source, by method; that of the class itself under ''."""
    found: dict[str, str] = {}
    for kind in reversed(core.__mro__[:-1]):
        source = getattr(sys.modules[kind.__module__], "__file__", None)
        if source is None or not Path(source).is_relative_to(ROOT):
            continue
        for node in ast.parse(Path(source).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                own = {"": _docstring(node)} if kind is core else {}
                own |= {each.name: _docstring(each) for each in node.body if isinstance(each, Documented)}
                found |= {name: docstring for name, docstring in own.items() if docstring is not None}
    return found


def _docstring(node: Documented) -> str | None:
    return ast.get_docstring(node, clean=False)


def _decorators(node: ast.stmt) -> int:
    """How many lines stand between the first decorator of *node* and its ``def``."""
    marks = getattr(node, "decorator_list", [])
    return node.lineno - marks[0].lineno if marks else 0


def main() -> int:
    """Write, or check."""
    changed = stale()
    for path, text in changed.items():
        if "--check" in sys.argv:
            print(
                f"{path.relative_to(ROOT)}: its docstrings are not those of the core: run `make fix`", file=sys.stderr
            )
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if changed and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
