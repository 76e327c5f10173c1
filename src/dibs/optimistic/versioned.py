"""A table whose rows have a version: each write names the version that it was computed from, and raises it.

The version is a number that only rises, so a row that was changed and changed back is told from one that was not. A
row that is deleted and made anew begins again: keep it and mark it as deleted, or let its key be a new one.
"""

from __future__ import annotations

from collections.abc import Mapping

from dibs.core.checks import shown
from dibs.errors import Changed, Deleted, Misuse
from dibs.ports.db.errors import lost_a_race, not_allowed
from dibs.ports.db.identifiers import identifier
from dibs.ports.db.session import Session, method_on_connection


class Versioned:
    """A table with a column for the version: ``Versioned("account").update(conn, {"id": 42}, 7, {"balance": 90})``.

    *conn* is a connection of sqlite3, psycopg, asyncpg or Django, or a Connection or Session of SQLAlchemy; with one
    for async code `update` is awaited.
    """

    def __init__(self, table: str, *, version: str = "version") -> None:
        self._table, self._version = identifier(table, "table"), identifier(version, "version")

    @method_on_connection
    async def update(self, conn: Session, key: Mapping[str, object], version: int, values: Mapping[str, object]) -> int:
        """Write *values* into the row with *key* if it still has *version*, in the caller's transaction.

        Returns the new version. Raises `Changed` if somebody else was first, `Deleted` if the row is gone.
        """
        version = _checked(version)
        where, params = _where(key)
        changes = [f"{self._version} = {self._version} + 1"]
        for number, (column, value) in enumerate(values.items()):
            changes.append(f"{identifier(column, 'column')} = :value{number}")
            params[f"value{number}"] = value
        found = await self._rows(
            conn,
            f"UPDATE {self._table} SET {', '.join(changes)} WHERE {where} AND {self._version} = :version "
            f"RETURNING {self._version}",
            {**params, "version": version},
        )
        if len(found) > 1:
            raise Misuse(f"{self._table} has {len(found)} rows with {dict(key)!r}: roll back, and name the whole key")
        return found[0] if found else await self._refused(conn, key, version)

    def __repr__(self) -> str:
        return f"<Versioned {self._table}.{self._version}>"

    async def _refused(self, conn: Session, key: Mapping[str, object], version: int) -> int:
        """Nothing was written: tell why. A row that has the version now got it after we had written nothing."""
        where, params = _where(key)
        found = await self._rows(conn, f"SELECT {self._version} FROM {self._table} WHERE {where}", params)
        row = f"{self._table} {', '.join(f'{column}={value!r}' for column, value in key.items())}"
        if not found:
            raise Deleted(row, version)
        raise Changed(row, version, found[0])

    async def _rows(self, conn: Session, sql: str, params: Mapping[str, object]) -> list[int]:
        """Run it; the versions that it returns."""
        try:
            return [int(row[0]) for row in await conn.rows(sql, **params)]
        except Exception as error:
            if not_allowed(error):
                error.add_note(
                    f"the user of this connection lacks a right; let the owner of {self._table} run: "
                    f"GRANT SELECT, INSERT, UPDATE ON {self._table} TO …"
                )
            if lost_a_race(error):
                error.add_note(
                    "another transaction wrote the row since this one began; dibs.optimistic.retry runs it again"
                )
            raise


def _where(key: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """The condition for the row, and its values."""
    if not key or None in key.values():
        raise Misuse(f"key={dict(key)!r}: it names the columns of the table's key, with a value for each")
    condition = " AND ".join(f"{identifier(column, 'column')} = :key{i}" for i, column in enumerate(key))
    return condition, {f"key{i}": value for i, value in enumerate(key.values())}


def _checked(version: object) -> int:
    if isinstance(version, bool) or not isinstance(version, int) or not -(2**63) <= version < 2**63:
        raise Misuse(f"version={shown(version)}: it is the whole number that was read with the row")
    return version
