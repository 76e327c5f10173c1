"""How the command is started: its group, its files, and its life after ours."""

from __future__ import annotations

import os
import sys

from .processes import Sandbox, finished


def test_the_command_leads_a_process_group_of_its_own(box: Sandbox) -> None:
    done = box.dibs("run", "x", "--", sys.executable, "-c", "import os; print(os.getpgrp() == os.getpid())")
    assert done.stdout == "True\n"


def test_there_is_no_shell_in_between(box: Sandbox) -> None:
    command = "import os; print(open(f'/proc/{os.getppid()}/cmdline').read().split('\\0')[3:5])"
    assert box.dibs("run", "x", "--", sys.executable, "-c", command).stdout == "['-m', 'dibs']\n"


def test_open_files_are_handed_on(box: Sandbox) -> None:
    """As ``3< file`` and ``<(…)`` of a shell need it."""
    read, write = os.pipe()
    os.write(write, b"through\n")
    os.close(write)
    look = f"import os; print(os.read({read}, 100))"
    process = box.start("run", "x", "--", sys.executable, "-c", look, pass_fds=[read])
    os.close(read)
    assert finished(process)[1] == "b'through\\n'\n"


SHOW_FILES = """
import os
for fd in os.listdir("/proc/self/fd"):
    try: print(os.readlink("/proc/self/fd/" + fd))
    except OSError: pass  # the one that listed them
"""


def test_nothing_of_ours_is_handed_on_but_what_keeps_the_lock(box: Sandbox) -> None:
    process = box.start("run", "x", "--", sys.executable, "-c", SHOW_FILES, close_fds=True)
    files = finished(process)[1].splitlines()
    assert len([file for file in files if file == "/dev/null"]) == 1
    assert len([file for file in files if file.startswith("pipe:")]) == 2
    [ours] = [file for file in files if not file.startswith(("pipe:", "/dev/null"))]
    assert "/alive/" in ours


def test_the_directory_is_ours(box: Sandbox) -> None:
    assert box.dibs("run", "x", "--", "pwd").stdout == f"{box.directory}\n"


def test_the_path_is_searched_for_the_command(box: Sandbox) -> None:
    box.file("bin").mkdir()
    box.file("bin/greet").write_text("#!/bin/sh\necho hello\n", encoding="utf-8")
    box.file("bin/greet").chmod(0o755)
    done = box.dibs("run", "x", "--", "greet", PATH=f"{box.file('bin')}:{os.environ['PATH']}")
    assert done.stdout == "hello\n"


def test_a_script_whose_interpreter_is_missing_gives_127(box: Sandbox) -> None:
    box.file("script").write_text("#!/no/such/interpreter\n", encoding="utf-8")
    box.file("script").chmod(0o755)
    assert box.dibs("run", "x", "--", "./script").returncode == 127
