"""Where the locks of a Django project are: what the settings say, else in its PostgreSQL database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings


def lock_url() -> str | None:
    """``DIBS_URL`` of the settings, else the default database if it is PostgreSQL; None leaves it to dibs."""
    named: str | None = getattr(settings, "DIBS_URL", None)
    return named or _of_database(settings.DATABASES.get("default", {}))


def _of_database(database: Mapping[str, Any]) -> str | None:
    if not str(database.get("ENGINE", "")).endswith((".postgresql", ".postgis")):
        return None
    user, password = (quote(str(database.get(part) or ""), safe="") for part in ("USER", "PASSWORD"))
    login = f"{user}{password and ':' + password}@" if user else ""
    host, port = str(database.get("HOST") or ""), str(database.get("PORT") or "")
    folder = host.startswith("/")  # of the server's socket
    query = urlencode({key: value for key, value in (("host", host), ("port", port)) if value}) if folder else ""
    where = "" if folder else quote(host, safe=":[]") + (port and f":{port}")
    return f"postgresql://{login}{where}/{quote(str(database.get('NAME') or ''), safe='')}{query and '?' + query}"
