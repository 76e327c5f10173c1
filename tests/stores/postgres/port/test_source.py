"""Which database a URL, a pool or an engine means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from dibs.errors import Misuse
from dibs.stores.postgres.port.source import from_client, from_url


def parts(conninfo: str) -> dict[str, Any]:
    return psycopg.conninfo.conninfo_to_dict(conninfo)


def test_options_of_ours_are_not_passed_on_to_libpq() -> None:
    source, options = from_url("postgresql://ann@db/shop?pooler=session&sslmode=require&connections=2")
    assert options == {"pooler": "session", "connections": "2"}
    found = parts(source.attempts[0])
    assert (found["host"], found["user"], found["dbname"], found["sslmode"]) == ("db", "ann", "shop", "require")


def test_what_the_url_says_goes_before_our_own_settings() -> None:
    source, _ = from_url("postgresql://db/shop?keepalives_idle=60&application_name=worker")
    found = parts(source.attempts[0])
    assert (found["keepalives_idle"], found["application_name"]) == ("60", "worker")
    assert found["tcp_user_timeout"] == "9000"


def test_several_hosts_are_tried_one_by_one_and_one_that_may_write_is_wanted() -> None:
    source, _ = from_url("postgresql+advisory://a:1,b:2,c/shop")
    found = [parts(attempt) for attempt in source.attempts]
    assert [(each["host"], each.get("port")) for each in found] == [("a", "1"), ("b", "2"), ("c", None)]
    assert {each["target_session_attrs"] for each in found} == {"read-write"}


def test_a_password_is_used_and_not_shown() -> None:
    source, _ = from_url("postgresql://ann:s%40fe@db:5433/shop")
    assert parts(source.attempts[0])["password"] == "s@fe"
    assert source.shown == "postgresql://db:5433/shop"


def test_a_database_may_have_a_slash_in_its_name() -> None:
    source, _ = from_url("postgresql://db/a%2Fb")
    assert parts(source.attempts[0])["dbname"] == "a/b"


def test_a_socket_is_named_by_its_folder() -> None:
    source, _ = from_url("postgresql:///shop?host=/run/postgresql")
    assert parts(source.attempts[0])["host"] == "/run/postgresql"


@pytest.mark.parametrize("url", ["postgresql:shop", "postgresql:/shop", "postgresql://db/shop?nonsense=1"])
def test_what_is_no_url_of_a_database_is_misuse(url: str) -> None:
    with pytest.raises(Misuse):
        from_url(url)


def test_a_pool_says_where_it_connects_to() -> None:
    pool = ConnectionPool("host=db dbname=shop", kwargs={"user": "ann", "autocommit": True}, open=False)
    found = parts(from_client(pool, blocking=True).attempts[0])
    assert (found["host"], found["dbname"], found["user"]) == ("db", "shop", "ann")


def test_a_pool_of_the_other_colour_is_misuse() -> None:
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool("host=db", open=False)
    assert from_client(pool, blocking=False).shown == "postgresql://db/"
    with pytest.raises(Misuse, match=r"dibs\.aio\.connect"):
        from_client(pool, blocking=True)
    with pytest.raises(Misuse, match=r"dibs\.connect"):
        from_client(ConnectionPool("host=db", open=False), blocking=False)


def test_an_engine_says_where_it_connects_to() -> None:
    url = SimpleNamespace(
        drivername="postgresql+psycopg", host="db", port=5433, username="ann", password="pw", database="shop", query={}
    )
    found = parts(from_client(SimpleNamespace(url=url, dialect=object()), blocking=True).attempts[0])
    assert (found["host"], found["port"], found["user"], found["password"]) == ("db", "5433", "ann", "pw")


def test_an_engine_of_another_database_is_misuse() -> None:
    url = SimpleNamespace(drivername="mysql+pymysql")
    with pytest.raises(Misuse, match="another kind of database"):
        from_client(SimpleNamespace(url=url, dialect=object()), blocking=True)


def test_anything_else_is_misuse() -> None:
    with pytest.raises(Misuse, match="is no pool or connection"):
        from_client(object(), blocking=True)
