"""The documentation is true: its examples run, its rendered parts are current, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import dibs
import jobs
import layers
import paths

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / "tools"


def pages() -> list[Path]:
    """Every Markdown page that people read."""
    built = ROOT / "docs" / "_build"
    return [
        *sorted(ROOT.glob("*.md")),
        *(p for p in sorted(ROOT.glob("docs/**/*.md")) if built not in p.parents),
    ]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run_examples(page: Path) -> subprocess.CompletedProcess[str]:
    tool = [sys.executable, str(TOOLS / "examples.py"), str(page)]
    return subprocess.run(tool, capture_output=True, text=True, check=False, timeout=50, start_new_session=True)


@pytest.mark.parametrize("page", pages(), ids=name)
def test_examples_run(page: Path) -> None:
    """Every example of a page does what the page says."""
    done = run_examples(page)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("example", "complaint"),
    [
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```", 'page.md", line 6'),
        ("```python\nimport asyncio\nawait asyncio.sleep(0)\n1 / 0\n```", "ZeroDivisionError"),
        ("```python no-run\nlease = = 1\n```", "SyntaxError"),
        ("```console\n$ dibs no-such-verb\n```", "$ dibs no-such-verb\nended with "),
        (
            "```console\n$ dibs --help\nentirely unrelated words\n```",
            "did not print anything like\nentirely",
        ),
    ],
)
def test_a_wrong_example_is_reported(tmp_path: Path, example: str, complaint: str) -> None:
    """An example that fails, cannot be compiled or prints something else is found, and its place shown."""
    page = tmp_path / "page.md"
    page.write_text(example, encoding="utf-8")
    done = run_examples(page)
    assert done.returncode == 1
    assert complaint in done.stderr


@pytest.mark.parametrize(
    "example",
    [
        "```python\nx = 1\n```\n\n```python\nassert x == 1\n```",
        "```python no-run\nimport not_installed\n```",
        "```console no-run\n$ dibs no-such-verb\n```",
        "```console\n$ rm -rf everything\n```",
        "```console\n$ dibs --help > help.txt; echo $?\n0\n```",
        "```console\n$ dibs --version & sleep 60 &\n```",
    ],
)
def test_a_right_example_passes(tmp_path: Path, example: str) -> None:
    """Blocks share a namespace, ``no-run`` does not run, and a background process does not hang the page."""
    page = tmp_path / "page.md"
    page.write_text(example, encoding="utf-8")
    assert run_examples(page).returncode == 0


def test_rendered_parts_are_current() -> None:
    """What the docs take from the code is what the code says now; `make fix` writes it."""
    done = subprocess.run([sys.executable, TOOLS / "render.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", pages(), ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every link to a file of ours names one that exists, with the heading it points to."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), f"{name(page)} links to {link}, and there is no such file"
        if anchor:
            assert anchor in anchors(target), f"{name(page)} links to {link}, and there is no such heading"


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=name)
def test_paths_and_modules_that_a_page_names_exist(page: Path) -> None:
    """What a page calls `core/lock.py` or `dibs.testing.contract` is there."""
    assert paths.lost(page) == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("see `src/dibs/core/lok.py`", ["src/dibs/core/lok.py"]),
        ("see `core/lok.py` and `core/lock.py`", ["core/lok.py"]),
        ("see `cores/`, `cli/NO_SUCH_VERB.md`", ["cli/NO_SUCH_VERB.md"]),
        ("see `dibs.core.lok`, `dibs.lock`, `dibs.core.lock.Lock`", ["dibs.core.lok"]),
        ("see `cli/VERB.py`, `stores/NAME/store.py`, `tests/core/`, `./report.sh`, `and/or`, `a/b.py`", []),
        ("```python no-run\n`core/lok.py`\n```\n", []),
    ],
)
def test_a_path_or_module_that_is_not_there_is_reported(tmp_path: Path, text: str, missing: list[str]) -> None:
    """It is found from the root, from src/dibs and from the page; capitals are any name, other paths are not ours."""
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert paths.lost(page) == missing


def test_every_folder_is_on_the_map() -> None:
    """docs/architecture.md has a question for each folder of src/dibs, but for what only Django asks for."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = {name.removeprefix("stores/NAME/") for name in re.findall(r"`([\w/]+?)/?`", page)}
    folders = {layers.folder(module) for module, path in layers.modules().items() if path.parent.name != "dibs"}
    lost = {it for it in folders if it not in named and it.split("/")[-1] not in named and "django/" not in it}
    assert not lost, f"give {sorted(lost)} a line in docs/architecture.md"


def test_every_file_name_of_three_technologies_has_a_job() -> None:
    """The same file name does the same job in each technology, and docs/architecture.md says which."""
    assert jobs.without_job() == []


def test_every_public_name_is_in_the_reference() -> None:
    """docs/api.md lists what dibs offers, so that a new public name is a decision somebody sees."""
    reference = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. auto\w+:: dibs\.(\w+)(?:\(\))?$", reference, flags=re.M)
    assert sorted(listed) == sorted(dibs.__all__)
