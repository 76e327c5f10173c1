"""``manage.py dibs_run NAME -- COMMAND …``: `dibs run` with the locks where the project's data is."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dibs.cli.main import main
from dibs.django.url import lock_url


class Command(BaseCommand):  # type: ignore[misc] # Django has no types
    """Takes what `dibs run` takes, and exits with its codes."""

    help = "Run a command while holding a lock, as dibs run does: manage.py dibs_run NAME -- COMMAND"
    requires_system_checks: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Leave the words to `dibs run`, whose ``--`` and options Django would take for its own."""
        words = argv[2:]
        end = words.index("--") if "--" in words else len(words)
        sys.exit(main(["run", *self._store(), *_without_djangos(words[:end]), *words[end:]]))

    def handle(self, *args: object, **options: object) -> None:
        """Called by ``call_command``: a program has `dibs.lock` for that."""
        raise CommandError("dibs_run is for the command line; in a program use dibs.lock")

    @staticmethod
    def _store() -> list[str]:
        url = lock_url()
        return [] if url is None else ["--url", url]


def _without_djangos(words: list[str]) -> list[str]:
    """The words without the two options that Django has acted upon already."""
    parser = CommandParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--settings")
    parser.add_argument("--pythonpath")
    return list(parser.parse_known_args(words)[1])
