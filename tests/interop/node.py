"""Node.js and the packages from npm that tests talk to, unpacked once into .servers/."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

from servers.programs import UNPACKED, missing, program

PACKAGES = {"ioredis": "5.11.1", "redlock4": "npm:redlock@4.2.0", "redlock5": "npm:redlock@5.0.0-beta.2"}

PATIENCE = 120.0
"""Seconds for npm."""


def packages() -> Path:
    """The folder with the packages; without npm or a network the test is skipped, or fails in CI."""
    wanted = json.dumps({"private": True, "dependencies": PACKAGES})
    folder = UNPACKED / f"node-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if not folder.exists():
        UNPACKED.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=UNPACKED, prefix="npm-", ignore_cleanup_errors=True) as place:
            fresh = Path(place) / "node"
            fresh.mkdir()
            (fresh / "package.json").write_text(wanted, encoding="ascii")
            install(fresh)
            if not folder.exists():  # another test run may have been faster
                os.rename(fresh, folder)
    return folder


def install(folder: Path) -> None:
    """Let npm fetch what package.json names."""
    npm = program("npm").path
    quiet = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        subprocess.run([npm, "install", *quiet], cwd=folder, check=True, capture_output=True, timeout=PATIENCE)
    except subprocess.CalledProcessError as failed:
        missing(f"npm could not fetch {', '.join(PACKAGES)}: {failed.stderr.decode(errors='replace').strip()}")
    except subprocess.TimeoutExpired:
        missing(f"npm did not fetch {', '.join(PACKAGES)} in {PATIENCE:g} s")
