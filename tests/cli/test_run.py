"""`dibs run` as its users see it: exit codes, refusals, environment, JSON, and guards of real programs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile

import pytest

from .processes import Sandbox, finished, until


@pytest.mark.parametrize("code", [0, 1, 75, 124, 255])
def test_it_exits_with_what_the_command_exits_with(box: Sandbox, code: int) -> None:
    done = box.dibs("run", "x", "--", "sh", "-c", f"exit {code}")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_command_that_a_signal_ended_gives_128_and_its_number(box: Sandbox, signum: int) -> None:
    assert box.dibs("run", "x", "--", "sh", "-c", f"kill -{int(signum)} $$").returncode == 128 + signum


def test_the_lock_is_free_after_the_command(box: Sandbox) -> None:
    box.dibs("run", "x", "--", "true")
    assert box.holder("x") is None


def test_a_command_that_is_not_found_gives_127(box: Sandbox) -> None:
    done = box.dibs("run", "x", "--", "no-such-program", "--help")
    assert done.returncode == 127
    assert done.stderr == "dibs: cannot run 'no-such-program': No such file or directory\n"
    assert box.holder("x") is None


@pytest.mark.parametrize("kind", ["directory", "plain file", "not a program"])
def test_a_command_that_cannot_be_run_gives_126(box: Sandbox, kind: str) -> None:
    path = box.file("thing")
    if kind == "directory":
        path.mkdir()
    else:
        path.write_text("echo no first line says who reads this\n", encoding="utf-8")
        path.chmod(0o755 if kind == "not a program" else 0o644)
    done = box.dibs("run", "x", "--", "./thing")
    assert done.returncode == 126
    assert re.fullmatch(r"dibs: cannot run '\./thing': .+\n", done.stderr)
    assert box.holder("x") is None


def test_a_refusal_is_one_line_that_says_who_holds_it(box: Sandbox) -> None:
    holder = box.start("run", "x", "--note", "nightly\ncharge", "--", "sh", "-c", "echo > ready; sleep 60")
    until(lambda: box.file("ready").exists())
    fence = box.fence("x")
    done = box.dibs("run", "--no-wait", "x", "--", "touch", "it-ran")
    assert done.returncode == 75
    assert done.stderr.startswith("dibs: lock 'x' was not acquired")
    assert done.stderr.count("\n") == 1
    for fact in [
        socket.gethostname(),
        f"pid {holder.pid}",
        "user ",
        "since 2",
        "'nightly\\ncharge'",
        "lease ends in",
        fence,
    ]:
        assert fact in done.stderr
    assert not box.file("it-ran").exists()


@pytest.mark.parametrize(
    ("options", "code"),
    [(["-E", "3"], 3), (["--conflict-exit-code", "0"], 0), (["-w", "0.1"], 75), (["-w0"], 75)],
)
def test_the_code_of_a_refusal_can_be_chosen(box: Sandbox, options: list[str], code: int) -> None:
    box.dibs("acquire", "x")
    done = box.dibs("run", "x", "-n" if "-w" not in options[0] else "--note=", *options, "--", "true")
    assert done.returncode == code
    assert "dibs: lock 'x' was not acquired" in done.stderr


def test_skip_ok_says_nothing_so_that_cron_sends_no_mail(box: Sandbox) -> None:
    box.dibs("acquire", "x")
    done = box.dibs("run", "-n", "--skip-ok", "x", "--", "true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_skip_ok_hides_no_other_failure(box: Sandbox) -> None:
    done = box.dibs("run", "-n", "--skip-ok", "x", "--", "./no-such-program")
    assert (done.returncode, done.stderr.count("\n")) == (127, 1)


def test_the_chosen_code_is_only_for_a_refusal(box: Sandbox) -> None:
    assert box.dibs("run", "-E", "3", "x", "--", "sh", "-c", "exit 75").returncode == 75


def test_a_waiter_gets_the_lock_when_it_is_given_back(box: Sandbox) -> None:
    first = box.start(
        "run", "x", "--", "sh", "-c", "echo > ready; while [ ! -e go ]; do sleep 0.02; done; echo 1 >> log"
    )
    until(lambda: box.file("ready").exists())
    second = box.start("run", "-w", "30", "x", "--", "sh", "-c", "echo 2 >> log")
    until(lambda: box.waiting("x"))
    box.file("go").touch()
    assert finished(first)[0] == finished(second)[0] == 0
    assert box.file("log").read_text(encoding="utf-8") == "1\n2\n"


def test_a_store_that_cannot_be_used_gives_69(box: Sandbox) -> None:
    box.dibs("run", "x", "--", "true")
    box.spoil()
    done = box.dibs("run", "x", "--", "touch", "it-ran")
    assert done.returncode == 69
    assert done.stderr.startswith("dibs: the store ")
    assert not box.file("it-ran").exists()


def test_the_command_learns_what_it_runs_under(box: Sandbox) -> None:
    show = "echo $DIBS_NAME; echo $DIBS_NAMESPACE; echo $DIBS_URL; echo $DIBS_FENCE; echo $DIBS_TOKEN"
    done = box.dibs("run", "the name", "--namespace", "shop", "--", "sh", "-c", show)
    name, namespace, url, fence, token = done.stdout.splitlines()
    assert (name, namespace, url) == ("the name", "shop", f"sqlite://{box.database}")
    assert token.startswith("dibs1:")
    assert f":{fence}:" in token


def test_the_command_can_check_its_lease(box: Sandbox) -> None:
    check = f"{sys.executable} -m dibs check"
    done = box.dibs("run", "x", "--namespace", "shop", "-c", f"{check} && {check} --json")
    assert done.returncode == 0, done.stderr
    text, facts = done.stdout.splitlines()
    assert re.fullmatch(r"x is held with fence \d+ for another \d+\.\d s", text)
    assert json.loads(facts)["holds"] is True


def test_streams_pass_through(box: Sandbox) -> None:
    done = box.dibs("run", "x", "--", "sh", "-c", "tr a-z A-Z; echo err >&2", stdin="hello\n")
    assert (done.stdout, done.stderr) == ("HELLO\n", "err\n")


def test_a_script_that_reads_stdin_gets_every_line(box: Sandbox) -> None:
    lines = "".join(f"{n}\n" for n in range(10_000))
    done = box.dibs("run", "x", "--", "sh", "-c", "while read -r n; do sum=$((sum + n)); done; echo $sum", stdin=lines)
    assert done.stdout == f"{sum(range(10_000))}\n"


def test_what_stands_after_the_dashes_is_left_alone(box: Sandbox) -> None:
    done = box.dibs("run", "x", "--", "printf", "%s|", "--json", "--", "-c", "a b", "", "$HOME", "é")
    assert done.stdout == "--json|--|-c|a b||$HOME|é|"


def test_a_string_is_run_by_the_shell(box: Sandbox) -> None:
    done = box.dibs("run", "x", "-c", """printf '%s;' "a  b" 'c"d' $((1 + 1)) | tr ';' '\\n'; exit 4""")
    assert (done.returncode, done.stdout) == (4, 'a  b\nc"d\n2\n')


def test_names_with_braces_spaces_and_emoji_are_different_locks(box: Sandbox) -> None:
    names = ["{}", "}x", "a b", "a\nb", "🔒", "A B", "L", "L/x"]
    for name in names:
        assert box.dibs("acquire", "-n", name).returncode == 0
    assert sorted(holder["name"] for holder in box.json("ls")) == sorted(names)


def test_json_tells_how_it_went(box: Sandbox) -> None:
    done = box.dibs("run", "--json", "x", "--", "sh", "-c", "echo out; exit 3")
    facts = json.loads(done.stderr)
    assert done.stdout == "out\n"
    assert facts.pop("waited") < 5
    assert facts.pop("fence") > 0
    assert facts == {
        "dibs": "run", "name": "x", "acquired": True, "why": "exited", "command": {"exit": 3}, "exit": 3, "messages": []
    }  # fmt: skip


def test_json_tells_who_is_in_the_way(box: Sandbox) -> None:
    box.dibs("acquire", "x", "--note", "mine")
    done = box.dibs("run", "--json", "-n", "--skip-ok", "x", "--", "true")
    facts = json.loads(done.stderr)
    assert (done.returncode, facts["exit"], facts["why"], facts["acquired"]) == (0, 0, "busy", False)
    assert facts["holder"]["note"] == "mine"
    assert "held by" in facts["messages"][0]


def test_json_tells_which_signal_ended_the_command(box: Sandbox) -> None:
    facts = json.loads(box.dibs("run", "--json", "x", "--", "sh", "-c", "kill -9 $$").stderr)
    assert (facts["why"], facts["command"], facts["exit"]) == ("signalled", {"signal": 9}, 137)


def test_json_tells_that_the_command_cannot_be_run(box: Sandbox) -> None:
    facts = json.loads(box.dibs("run", "--json", "x", "--", "./no-such-program").stderr)
    assert (facts["why"], facts["exit"], facts["acquired"]) == ("cannot_exec", 127, True)


def test_it_guards_a_vacuum_of_a_database(box: Sandbox) -> None:
    path = box.file("shop.db")
    db = sqlite3.connect(path)
    with db:
        db.execute("create table t (x)")
        db.executemany("insert into t values (?)", [("x" * 1000,)] * 2000)
        db.execute("delete from t where rowid > 10")
    db.close()
    before = path.stat().st_size
    vacuum = "import sqlite3; sqlite3.connect('shop.db').execute('vacuum')"
    runs = [box.start("run", "shop", "--", sys.executable, "-c", vacuum) for _ in range(3)]
    assert [finished(run) for run in runs] == [(0, "", "")] * 3
    assert path.stat().st_size < before / 10


def test_it_guards_a_tar_of_a_tree(box: Sandbox) -> None:
    for n in range(50):
        leaf = box.file("tree") / f"d{n % 5}" / f"f{n}"
        leaf.parent.mkdir(parents=True, exist_ok=True)
        leaf.write_text(str(n), encoding="utf-8")
    runs = [box.start("run", "backup", "--", "tar", "-cf", "tree.tar", "tree") for _ in range(3)]
    assert [finished(run)[0] for run in runs] == [0, 0, 0]
    with tarfile.open(box.file("tree.tar")) as tar:
        assert sum(member.isfile() for member in tar) == 50


def test_no_update_of_a_counter_is_lost(box: Sandbox) -> None:
    count = "for i in 1 2 3 4 5; do n=$(cat n); sleep 0.01; echo $((n + 1)) > n; done"
    box.file("n").write_text("0\n", encoding="utf-8")
    runs = [box.start("run", "n", "-c", count) for _ in range(4)]
    assert [finished(run)[0] for run in runs] == [0] * 4
    assert box.written("n") == "20"


def test_a_closed_stderr_does_not_change_the_code(box: Sandbox) -> None:
    command = f'exec "{sys.executable}" -m dibs run x -- ./no-such-program 2>&-'
    done = subprocess.run(["sh", "-c", command], env=box.env, cwd=box.directory, check=False, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (127, b"")


def test_the_installed_script_does_the_same(box: Sandbox) -> None:
    script = os.path.join(os.path.dirname(sys.executable), "dibs")
    assert subprocess.run([script, "run", "x", "--", "sh", "-c", "exit 9"], env=box.env, check=False).returncode == 9
