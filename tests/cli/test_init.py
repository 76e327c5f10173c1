"""`dibs init` makes the tables of PostgreSQL, or prints how."""

from __future__ import annotations

import psycopg

from servers.postgres import PostgresServer

from .processes import Sandbox


def test_what_is_printed_makes_the_tables(box: Sandbox, postgres: PostgresServer) -> None:
    postgres.do("DROP DATABASE IF EXISTS printed")
    postgres.do("CREATE DATABASE printed")
    done = box.dibs("init", "--sql", "--url", postgres.url_of("printed"))
    assert done.returncode == 0
    with psycopg.connect(postgres.url_of("printed"), autocommit=True) as connection:
        connection.execute(done.stdout.encode())
    taken = box.dibs("acquire", "x", "--url", postgres.url_of("printed"))
    assert taken.returncode == 0


def test_without_sql_they_are_made(box: Sandbox, postgres: PostgresServer) -> None:
    postgres.do("DROP DATABASE IF EXISTS made")
    postgres.do("CREATE DATABASE made")
    done = box.dibs("init", "--url", postgres.url_of("made"))
    assert (done.returncode, done.stdout) == (0, "the tables are there\n")
    with psycopg.connect(postgres.url_of("made")) as connection:
        assert connection.execute("SELECT count(*) FROM dibs_lease").fetchone() == (0,)


def test_a_store_without_tables_is_wrong_usage(box: Sandbox) -> None:
    done = box.dibs("init", "--url", "memory:")
    assert (done.returncode, done.stdout) == (64, "")
    assert "a memory: store has no tables to make" in done.stderr


def test_what_is_wrong_usage_shows_no_password(box: Sandbox) -> None:
    for url in ("redis://:hunter2@localhost/0", "consul://localhost?token=hunter2", "hunter2@localhost", "://hunter2"):
        for more in ([], ["--sql"]):
            done = box.dibs("init", *more, "--url", url)
            assert done.returncode == 64
            assert "has no tables to make" in done.stderr
            assert "hunter2" not in done.stderr
