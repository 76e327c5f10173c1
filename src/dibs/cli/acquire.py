"""Take a lock, print the lease as text, and leave it held until its ttl is over.

  DIBS_TOKEN=$(dibs acquire deploy --ttl 10m) || exit; export DIBS_TOKEN
  ...
  dibs check && ./the-dangerous-step
  dibs release

For scripts whose steps are separate programs. Nobody renews the lease meanwhile: give it a --ttl that is long
enough, or call dibs renew. Use dibs run wherever you can. The text proves ownership: treat it as a secret.

TIME is in seconds, or has a unit: 500ms, 90s, 5m, 2h, 1d.

Exit codes: 0 acquired; 75 somebody else holds the lock; 128+n if signal n ended the wait; 64 wrong usage; 69 the
store is not available.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dibs.cli.exits import Exit
from dibs.cli.lines import CannotWriteError, print_json, say, write
from dibs.cli.nesting import refuse_to_wait_for_ourselves
from dibs.cli.options import add_asking, add_common, add_share, lock_of, timeout_of
from dibs.cli.signals import Signals
from dibs.cli.where import connected
from dibs.errors import NotAcquired

if TYPE_CHECKING:
    from dibs import Client, Lease

USAGE = "dibs acquire [OPTIONS] NAME"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs acquire` takes."""
    parser.add_argument("name", metavar="NAME", help="what to lock: any text")
    add_asking(parser)
    add_share(parser)
    add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Do it."""
    timeout = timeout_of(args)
    with Signals() as signals, connected(args) as client:
        lock = lock_of(args, client)
        try:
            with signals.raised():
                refuse_to_wait_for_ourselves(client, args.name)
                lease = lock.acquire(timeout=timeout)
        except NotAcquired as error:
            return _refused(args, error)
        signals.stop_if_any()  # then closing the client gives it back
        _hand_out(args, client, lease)
    return 0


def _refused(args: argparse.Namespace, error: NotAcquired) -> int:
    if args.json:
        holder = error.holder._asdict() if error.holder else None
        print_json({"acquired": False, "name": error.name, "waited": round(error.waited, 3), "holder": holder})
    say(str(error))
    return Exit.NOT_ACQUIRED


def _hand_out(args: argparse.Namespace, client: Client, lease: Lease) -> None:
    text = lease.detach()
    try:
        if args.json:
            print_json({"acquired": True, "name": lease.name, "fence": lease.fence, "ttl": lease.ttl, "token": text})
        else:
            write(text)
    except CannotWriteError:  # nobody got the text, so nobody could release it
        client.resume(text).release()
        raise
