"""What error replies mean."""

from __future__ import annotations

import pytest

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.stores.redis.port.errors import NOT_DONE, code_of, refused


@pytest.mark.parametrize("code", NOT_DONE)
def test_what_the_server_refused_before_it_did_anything_is_certainly_not_done(code: str) -> None:
    error = refused("host:6379", f"{code} and what the server says")
    assert type(error) is StoreUnavailable
    assert "what the server says" in error.problem


@pytest.mark.parametrize("text", ["ERR unknown command 'EVALSHA'", "ERR max number of clients reached"])
def test_some_errors_without_a_code_of_their_own_are_certain_too(text: str) -> None:
    assert type(refused("host:6379", text)) is StoreUnavailable


@pytest.mark.parametrize(
    "text",
    [
        "ERR Error running script (call to f_1): @user_script:1: The user executing the script can't run it",  # Redis 6
        "ERR The user executing the script can't run this command or subcommand script: 1, on @user_script:6.",  # 7.0
        "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
        "NOPERM ACL failure in script: User locks has no permissions to run the 'hset' command",  # 7.2 and Valkey
    ],
)
def test_a_command_in_a_script_that_the_user_may_not_do_is_told_as_one(text: str) -> None:
    error = refused("host:6379", text)
    assert type(error) is StoreUnavailable
    assert "this user may not do all that dibs needs" in error.problem


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("OOM command not allowed script: 1, on @user_script:6.", "OOM"),
        ("ERR Error running script (call to f_1): @user_script:8: @user_script: 8: -OOM command not allowed", "OOM"),
        ("ERR Error running script (call to f_1): @user_script:8: WRONGTYPE Operation against a key", "WRONGTYPE"),
        ("ERR Error running script (call to f_1): @user_script:8: -READONLY You can't write", "READONLY"),
        ("ERR Unknown Redis command called from script script: 1, on @user_script:6.", "UNKNOWN"),
        ("ERR Error running script: @user_script: 6: Unknown Redis command called from Lua script", "UNKNOWN"),
        ("ERR Error running script (call to f_1): @user_script:8: attempt to index a nil value", "ERR"),
    ],
)
def test_the_code_of_an_error_is_found_where_each_version_has_it(text: str, code: str) -> None:
    assert code_of(text) == code
    assert (type(refused("host:6379", text)) is StoreUnavailable) == (code != "ERR")


def test_a_key_of_another_kind_is_among_those_that_are_named_with_their_kinds() -> None:
    keys = [b"dibs:{default:a}", b"dibs:{default:a}:line", b"dibs:{default:a}:tickets"]
    problem = refused("host:6379", "WRONGTYPE Operation against a key", keys).problem
    assert "'dibs:{default:a}' (string), 'dibs:{default:a}:line' (zset), 'dibs:{default:a}:tickets' (hash)" in problem


@pytest.mark.parametrize("text", ["ERR something new", "UNKILLABLE", "NOTBUSY", "OOMPH", "ERR Error running script"])
def test_what_we_do_not_know_may_have_happened(text: str) -> None:
    assert type(refused("host:6379", text)) is OutcomeUnknown
