"""Numbers and words on the command line: read, or refused in one line before anything is sent."""

from __future__ import annotations

import json

import pytest

from dibs.cli.options import exit_code, fence, seconds, seconds_or_zero

from .processes import Sandbox


def test_lengths_are_seconds() -> None:
    assert [seconds("30"), seconds("1.5"), seconds("1e1"), seconds_or_zero("0")] == [30.0, 1.5, 10.0, 0.0]


@pytest.mark.parametrize(
    ("text", "length"), [("500ms", 0.5), ("90s", 90), ("5m", 300), ("1.5h", 5400), ("2h", 7200), ("1d", 86400)]
)
def test_a_length_may_have_a_unit(text: str, length: float) -> None:
    assert seconds(text) == length


def test_fences_and_exit_codes_are_whole_numbers() -> None:
    assert (fence("1718000000000000"), exit_code("0"), exit_code("255")) == (1718000000000000, 0, 255)


BAD_LENGTHS = ["0", "-1", "nan", "inf", "-inf", "1e30", "abc", "", " ", "s", "-1m", "99999h", "1h30m", "5M", "nand"]


@pytest.mark.parametrize("option", ["--ttl", "--grace", "--max-hold"])
@pytest.mark.parametrize("value", BAD_LENGTHS)
def test_a_bad_length_is_refused(box: Sandbox, capfd: pytest.CaptureFixture[str], option: str, value: str) -> None:
    assert refused(box, capfd, "run", f"{option}={value}", "x", "--", "true").startswith("dibs: argument " + option)


@pytest.mark.parametrize("value", [bad for bad in BAD_LENGTHS if bad != "0"])
def test_a_bad_timeout_is_refused(box: Sandbox, capfd: pytest.CaptureFixture[str], value: str) -> None:
    assert "--timeout" in refused(box, capfd, "run", f"--timeout={value}", "x", "--", "true")


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "abc", "", "9223372036854775808", "1e3", "٣"])
def test_a_bad_fence_is_refused(box: Sandbox, capfd: pytest.CaptureFixture[str], value: str) -> None:
    assert "--fence" in refused(box, capfd, "evict", "x", f"--fence={value}", "--reason", "why")


@pytest.mark.parametrize("value", ["-1", "256", "abc", "", "1.0"])
def test_a_bad_exit_code_is_refused(box: Sandbox, capfd: pytest.CaptureFixture[str], value: str) -> None:
    assert "--conflict-exit-code" in refused(box, capfd, "run", f"-E={value}", "x", "--", "true")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("run", "required: NAME; see dibs run --help"),
        ("run x", "give the command after --"),
        ("run x --", "give the command after --"),
        ("run x true", "put -- before the command"),
        ("run x true -- false", "put -- before the command"),
        ("run x -c true -- true", "not both"),
        ("run -n -w 3 x -- true", "exclude each other"),
        ("run --skip-ok -E 3 x -- true", "exclude each other"),
        ("run --grace 20 x -- true", "less than two thirds"),
        ("run --ttl 3 --grace 2 x -- true", "less than two thirds"),
        ("run --on-lost panic x -- true", "not one of term, kill, continue"),
        ("run --tt 3 x -- true", "--tt"),
        ("run --ttl", "--ttl"),
        ("run --ttl 0.001 x -- true", "ttl"),
        ("run --url gopher://x x -- true", "gopher"),
        ("break x --reason why", "--fence"),
        ("break x --fence 3", "--reason"),
        ("check", "DIBS_TOKEN"),
        ("renew nonsense", "not a lease"),
        ("release dibs1:a:b", "not a lease"),
        ("ls a b", "unrecognized arguments"),
        ("frob", "no verb 'frob'"),
        ("-x", "no verb '-x'"),
    ],
)
def test_a_call_that_cannot_be_right_is_refused(
    box: Sandbox, capfd: pytest.CaptureFixture[str], call: str, says: str
) -> None:
    assert says in refused(box, capfd, *call.split())


@pytest.mark.parametrize("call", [("run", "", "--", "true"), ("show", ""), ("acquire", "")])
def test_an_empty_name_is_refused(box: Sandbox, capfd: pytest.CaptureFixture[str], call: tuple[str, ...]) -> None:
    assert "name is not empty" in refused(box, capfd, *call)


def test_a_reason_must_say_something(box: Sandbox, capfd: pytest.CaptureFixture[str]) -> None:
    assert "--reason is empty" in refused(box, capfd, "evict", "x", "--fence", "3", "--reason", " ")


def test_a_name_that_is_not_text_is_refused(box: Sandbox, capfd: pytest.CaptureFixture[str]) -> None:
    assert "surrogate" in refused(box, capfd, "run", "\udcff", "--", "true")


def refused(box: Sandbox, capfd: pytest.CaptureFixture[str], *args: str) -> str:
    """Check that a call ends with 64 and one line, without having opened the store; return the line."""
    from dibs.cli.main import main  # noqa: PLC0415

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIBS_URL", box.url)
        patch.delenv("DIBS_TOKEN", raising=False)
        assert main(args) == 64
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("dibs: ")
    assert err.count("\n") == 1
    assert not box.database.parent.exists()
    return err


@pytest.mark.parametrize("name", ["-x", "--force", "-1", "-w"])
def test_a_name_that_begins_with_a_dash_stands_after_two(box: Sandbox, name: str) -> None:
    assert box.dibs("acquire", "--", name).returncode == 0
    shown = json.loads(box.dibs("show", "--json", "--", name).stdout)
    assert shown["name"] == name
    fence = str(shown["holder"]["fence"])
    assert box.dibs("evict", "--fence", fence, "--reason", "a test", "--", name).returncode == 0


def test_a_command_runs_under_a_name_that_begins_with_a_dash(box: Sandbox) -> None:
    done = box.dibs("run", "-n", "--", "-x", "--", "sh", "-c", 'echo "$DIBS_NAME" "$@"', "sh", "--", "-y")
    assert (done.returncode, done.stdout) == (0, "-x -- -y\n")
    assert box.dibs("once", "--slot", "1", "--", "--x", "--", "echo", "ran").stdout == "ran\n"


@pytest.mark.parametrize("call", [("show",), ("acquire",), ("run", "--"), ("evict", "--fence", "1", "--reason", "x")])
def test_who_forgets_the_dashes_is_told_of_them(box: Sandbox, call: tuple[str, ...]) -> None:
    verb, *rest = call
    options, command = (rest[:-1], ["--", "true"]) if rest[-1:] == ["--"] else (rest, [])
    done = box.dibs(verb, *options, "-x", *command)
    assert done.returncode == 64
    assert f"a NAME that begins with a dash is written after --, as in dibs {verb} -- -x" in done.stderr
    assert len(done.stderr.splitlines()) == 1
