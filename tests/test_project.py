"""What surrounds the code holds together: the Makefile, CI, the README's commands, the package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import dibs

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def make(*args: str) -> str:
    """What make prints, without the settings of the make that may have started these tests."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(["make", *args], cwd=ROOT, env=plain, capture_output=True, text=True, check=True)
    return done.stdout


def test_make_alone_lists_every_target() -> None:
    """A newcomer who types `make` sees all there is."""
    phony = re.search(r"^\.PHONY: (.+)$", MAKEFILE, flags=re.M)
    assert phony
    assert re.findall(r"^make ([\w-]+)", make(), flags=re.M) == phony[1].split()


def test_every_target_that_runs_python_makes_its_environment_first() -> None:
    """No target needs another to have been run before."""
    rules = re.findall(r"^([a-z-]+):(.*)\n((?:\t.*\n)+)", MAKEFILE, flags=re.M)
    needy = {target: needs for target, needs, recipe in rules if "$(bin)" in recipe or ".venv-bench/" in recipe}
    assert {"demo", "quick", "test", "test-all", "check", "fix", "bench"} <= needy.keys()
    assert all("venv)" in needs for needs in needy.values())


def test_the_demo_shows_what_it_says() -> None:
    """`make demo` is how people meet dibs: all its scenes play, in arrival order."""
    demo = [sys.executable, str(ROOT / "tools" / "demo.py")]
    done = subprocess.run(demo, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ms after the kill" in done.stdout
    assert "exit code 75" in done.stdout


def test_ci_runs_the_command_of_the_readme() -> None:
    """What we tell contributors to type is what CI runs, no more and no less."""
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert ci.splitlines()[-1].removeprefix("exec make --no-print-directory ") == "check test"
    assert "make check test" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_core_needs_nothing() -> None:
    """Installing dibs installs dibs: every dependency belongs to an extra."""
    assert [need for need in requires("dibs") or [] if "extra ==" not in need] == []


def test_types_are_shipped() -> None:
    """Whoever uses dibs gets its type hints."""
    assert Path(dibs.__file__).with_name("py.typed").exists()


def test_the_changelog_is_ahead_of_the_version() -> None:
    """While a version is in development, its changes stand under Unreleased; else under its number."""
    version = PYPROJECT["project"]["version"]
    newest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)
    assert newest
    assert newest[1].startswith("Unreleased" if "dev" in version else version)
