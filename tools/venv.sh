#!/usr/bin/env bash
# Makes a virtual environment with dibs in it, editable, and the dependency groups named on the command line:
#
#     tools/venv.sh .venv dev docs
#
# It needs a Python (PYTHON, else python3) and a way to get pip: ensurepip, or a pip of that Python.
set -euo pipefail

venv=$1
shift
python=${PYTHON:-python3}

say() { echo "$0: $*" >&2; }

if ! command -v "$python" >/dev/null; then
    say "there is no '$python'; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python"
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    say "dibs needs Python 3.11 or newer and '$python' is $("$python" -V); name another: make PYTHON=python3.12"
    exit 1
fi

echo "making $venv with $("$python" -V) (once; again when pyproject.toml changes)"
if "$python" -c 'import ensurepip' 2>/dev/null; then
    "$python" -m venv "$venv"
else
    # Debian keeps ensurepip in a package of its own. A pip from outside can fill an environment as well.
    "$python" -m venv --without-pip "$venv"
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1 &&
        ! "$python" -m pip --python "$venv/bin/python" install --quiet pip; then
        say "'$python' has neither ensurepip nor pip; on Debian and Ubuntu: apt-get install python3-venv"
        exit 1
    fi
fi
echo '*' >"$venv/.gitignore"

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

pip install --quiet 'pip>=25.1' # the first that knows --group
groups=()
for group in "$@"; do groups+=(--group "$group"); done
pip install --quiet --editable . "${groups[@]}"
