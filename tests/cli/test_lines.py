"""What people read is one line, whatever others wrote into it."""

from __future__ import annotations

import pytest

from dibs.cli.lines import printable, say, say_json


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert printable("a\nb\x1b[31m\tü\u202e") == "a\\nb\\x1b[31m\\tü\\u202e"


def test_text_of_any_script_is_left_alone() -> None:
    assert printable("Zürich 東京 🔒 {}") == "Zürich 東京 🔒 {}"


def test_a_broken_name_can_be_shown() -> None:
    assert printable("a\udcff") == "a\\udcff"


def test_a_line_of_ours_says_who_speaks(capfd: pytest.CaptureFixture[str]) -> None:
    say("two\nlines")
    assert capfd.readouterr().err == "dibs: two\\nlines\n"


def test_json_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    say_json({"note": "two\nlines"})
    assert capfd.readouterr().err == '{"note": "two\\nlines"}\n'
