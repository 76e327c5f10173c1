"""Finds the paths and modules of ours that a page names in code, such as `core/lock.py`, and that do not exist.

A path may begin at the root of the repository, in `src/dibs`, or beside the page. A word in capitals in it stands for
any name (`cli/VERB.py`), and so does ``*``. What begins with no folder of ours is somebody else's.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PATH = re.compile(r"[\w.*-]+(/[\w.*-]+)*/?")
MODULE = re.compile(r"dibs(\.\w+)+")
BLOCK = re.compile(r"^```.*?^```", re.M | re.S)


def lost(page: Path) -> list[str]:
    """The paths and modules that *page* names and that do not exist."""
    names = dict.fromkeys(CODE.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))))
    return [name for name in names if not found(name, page)]


def found(name: str, page: Path) -> bool:
    """Whether *name* exists, or is not a name of a file or module of ours."""
    if MODULE.fullmatch(name) and not name.endswith((".toml", ".py")):
        return is_module(name)
    if name.startswith("./") or not PATH.fullmatch(name) or ("/" not in name.rstrip("/") and not name.endswith("/")):
        return True
    begins = [
        base for base in (ROOT, ROOT / "src" / "dibs", page.parent) if (base / name.split("/", maxsplit=1)[0]).is_dir()
    ]
    return not begins or any(exists(base, name) for base in begins)


def exists(base: Path, name: str) -> bool:
    """Whether something below *base* has this name, with capitals for any name."""
    pattern = re.sub(r"(?<![a-z])[A-Z]{2,}(?![a-z])", "*", name.rstrip("/"))
    return (base / name).exists() or next(base.glob(pattern), None) is not None


def is_module(name: str) -> bool:
    """Whether this is a module of ours, or something in one."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def all_lost(pages: list[Path]) -> Iterator[str]:
    """A sentence for each name that is lost."""
    for page in pages:
        for name in lost(page):
            yield f"{page.relative_to(ROOT)} names {name}, and there is no such file or module"
