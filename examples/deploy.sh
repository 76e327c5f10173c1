#!/bin/sh
# One deployment at a time, from whatever machine: deploy.sh VERSION
#
# Who comes second waits up to ten minutes, and is told who has it if that is in vain; `dibs show deploy` tells
# meanwhile. When the lock is lost, this script is asked to end before somebody else can begin. RELEASES is the folder
# that is deployed into.
set -eu

[ "${DIBS_NAME:-}" = deploy ] || exec dibs run --timeout 10m --note "version $1" deploy -- sh "$0" "$@"

rm -rf "$RELEASES/next" # of a deployment that failed
cp -R "$RELEASES/$1" "$RELEASES/next"
[ -z "${SMOKE_TEST:-}" ] || sh -c "$SMOKE_TEST"
rm -rf "$RELEASES/live"
mv "$RELEASES/next" "$RELEASES/live"
echo "version $1 is live, as deployment $DIBS_FENCE"
