"""What a driver's error says is understood whichever driver it is from, raw or wrapped."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any, cast

import pg8000.dbapi
import psycopg2
import pytest

from dibs.ports.db.errors import code_of, lost_a_race, no_such_table, not_allowed, not_in_time
from dibs.runtime import run
from guards.callers import POSTGRES, Caller
from servers.postgres import HOST, USER, PostgresServer


class OnCursor(Caller):
    """A driver whose connections execute nothing by themselves."""

    async def do(self, sql: str) -> list[tuple[Any, ...]]:
        cursor = self.conn.cursor()
        cursor.execute(sql)
        return cast("list[tuple[Any, ...]]", cursor.fetchall()) if cursor.description else []


async def psycopg2_itself(url: str) -> Caller:
    return OnCursor(psycopg2.connect(url))


async def pg8000_itself(url: str) -> Caller:
    port, _, database = url.rpartition(":")[2].partition("/")
    return OnCursor(pg8000.dbapi.connect(USER, HOST, database, int(port)))


KINDS = {**POSTGRES, "psycopg2": (psycopg2_itself, True), "pg8000": (pg8000_itself, True)}

MEANT = {
    "40001": lost_a_race,
    "40P01": lost_a_race,
    "55P03": not_in_time,
    "42P01": no_such_table,
    "42501": not_allowed,
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_driver_is_understood(kind: str, postgres: PostgresServer) -> None:
    opener, blocking = KINDS[kind]

    async def provoke() -> None:
        for code, meant in MEANT.items():
            caller = await opener(postgres.url)
            with pytest.raises(Exception, match="too much") as raised:
                await caller.do(f"DO $$ BEGIN RAISE EXCEPTION 'too much' USING ERRCODE = '{code}'; END $$")
            await caller.close()
            assert code_of(raised.value) == code
            assert {each for each in MEANT.values() if each(raised.value)} == {meant}

    run(provoke()) if blocking else asyncio.run(provoke())


def test_a_deadlock_that_a_driver_of_mysql_tells_is_a_lost_race() -> None:
    kind = type("OperationalError", (Exception,), {"__module__": "pymysql.err"})
    assert lost_a_race(kind(1213, "Deadlock found when trying to get lock; try restarting transaction"))
    assert not lost_a_race(kind(1205, "Lock wait timeout exceeded; try restarting transaction"))
    assert not lost_a_race(RuntimeError(1213, "something else"))


DJANGO = """
import sys
sys.modules["psycopg"] = None  # what is not installed: Django then takes psycopg2
import django
from django.conf import settings
_, host, port, user = sys.argv
of_both = {"ENGINE": "django.db.backends.postgresql", "HOST": host, "PORT": port, "USER": user, "NAME": "postgres"}
settings.configure(USE_TZ=True, DATABASES={"default": of_both, "other": of_both})
django.setup()
from django.db import connections, transaction
from dibs.errors import GuardMissing, NotAcquired
from dibs.guards import TableGuard
from dibs.postgres import xact_lock
assert type(connections["default"].cursor().cursor).__module__.startswith(("psycopg2", "django"))
with transaction.atomic(), transaction.atomic("other"):
    xact_lock(connections["default"], "x")
    try:
        xact_lock(connections["other"], "x", timeout=0.02)
    except NotAcquired:
        print("not acquired")
    try:
        TableGuard().claim(connections["default"], "x", 1)
    except GuardMissing:
        print("no guard")
        transaction.set_rollback(True)
"""


def test_django_on_psycopg2_is_understood(postgres: PostgresServer) -> None:
    command = [sys.executable, "-c", DJANGO, HOST, str(postgres.port), USER]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout.split("\n")[:2] == ["not acquired", "no guard"], found.stderr
