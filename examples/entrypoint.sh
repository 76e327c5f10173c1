#!/bin/sh
# Every replica begins with this: entrypoint.sh DATABASE COMMAND…
#
# The first one migrates the database; the others wait for it, and find nothing to do. Then each becomes the command.
set -eu
database=$1
shift

dibs run --timeout 10m migrate -- python3 "$(dirname "$0")/migrate.py" "$database"
exec "$@"
