"""Commands as bytes."""

from __future__ import annotations

from dibs.stores.redis.port.command import Script, bulk, command


def test_a_command_is_an_array_of_strings_by_their_length_in_bytes() -> None:
    assert command("SET", "é", b"\r\n", 42) == b"*4\r\n$3\r\nSET\r\n$2\r\n\xc3\xa9\r\n$2\r\n\r\n\r\n$2\r\n42\r\n"


def test_a_script_is_called_by_its_digest_with_its_keys_counted() -> None:
    script = Script("return 1")
    called = script.call((b"key",), "argument")
    assert called == command("EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", 1, "key", "argument")
    assert called == script.head((b"key",), 1) + bulk("argument")


def test_a_server_that_does_not_know_a_script_gets_its_text_even_where_arguments_look_like_it() -> None:
    script = Script("return 1")
    hostile = bulk("EVALSHA") + bulk("e0e1f9fabfc9d4800c877a703b823ac0578ff8db")
    assert script.in_full(script.call((hostile,), hostile)) == command("EVAL", "return 1", 1, hostile, hostile)


def test_comments_and_indents_are_not_sent() -> None:
    assert Script("  -- why\n  return 1\n\n").text == "return 1"
