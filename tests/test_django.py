"""``manage.py dibs_run`` is `dibs run`, with the locks where the project's data is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs.django.url import _of_database
from servers.postgres import PostgresServer


def manage(folder: Path, settings: str, *words: str) -> subprocess.CompletedProcess[str]:
    """``manage.py`` of a project with these settings."""
    (folder / "shop_settings.py").write_text(f"INSTALLED_APPS = ['dibs.django']\nUSE_TZ = True\n{settings}\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIBS_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "django", *words],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(folder), "DJANGO_SETTINGS_MODULE": "shop_settings"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_runs_the_command_under_the_lock_and_exits_with_its_code(tmp_path: Path) -> None:
    settings = f"DIBS_URL = 'sqlite://{tmp_path}/locks.db'"
    done = manage(tmp_path, settings, "dibs_run", "nightly", "--", "sh", "-c", "echo $DIBS_NAME --settings; exit 7")
    assert (done.stdout, done.returncode) == ("nightly --settings\n", 7), done.stderr


def test_it_takes_the_options_of_dibs_run_and_its_exit_codes(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    with dibs.connect(url) as client, client.lock("nightly"):
        words = ["dibs_run", "--settings", "shop_settings", "--timeout", "0", "nightly", "--", "true"]
        done = manage(tmp_path, f"DIBS_URL = '{url}'", *words)
    assert done.returncode == 75
    assert "held by" in done.stderr


def test_the_locks_are_in_the_projects_database(tmp_path: Path, postgres: PostgresServer) -> None:
    database = {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "PORT": postgres.port}
    settings = f"DATABASES = {{'default': {database | {'USER': 'tests', 'NAME': 'postgres'}!r}}}"
    with dibs.connect(postgres.url) as client, client.lock("nightly"):
        done = manage(tmp_path, settings, "dibs_run", "--timeout", "0", "nightly", "--", "true")
    assert done.returncode == 75, done.stderr


@pytest.mark.parametrize(
    ("database", "url"),
    [
        ({"NAME": "shop"}, "postgresql:///shop"),
        ({"NAME": "shop", "HOST": "db", "PORT": 5433, "USER": "a@b"}, "postgresql://a%40b@db:5433/shop"),
        ({"NAME": "a/b", "HOST": "db", "USER": "u", "PASSWORD": "p:/?"}, "postgresql://u:p%3A%2F%3F@db/a%2Fb"),
        ({"NAME": "shop", "HOST": "/run/pg", "PORT": "1"}, "postgresql:///shop?host=%2Frun%2Fpg&port=1"),
        ({"NAME": "shop", "ENGINE": "django.db.backends.sqlite3"}, None),
        ({}, "postgresql:///"),
    ],
)
def test_a_database_of_the_settings_has_a_url(database: dict[str, Any], url: str | None) -> None:
    assert _of_database({"ENGINE": "django.db.backends.postgresql", **database}) == url


def test_a_program_is_told_what_to_use_instead(tmp_path: Path) -> None:
    program = "import django; django.setup(); from django.core.management import call_command; call_command('dibs_run')"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from django.conf import settings; settings.configure(INSTALLED_APPS=['dibs.django']); {program}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "in a program use dibs.lock" in done.stderr
