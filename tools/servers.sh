#!/usr/bin/env bash
# Brings the servers that the tests talk to: what this machine does not have is unpacked into a folder of the checkout.
#
#     tools/servers.sh .servers
#
# apt, with lists and a cache of its own, fetches a Debian package and those of its dependencies that the machine
# lacks, and dpkg unpacks them. So nothing is installed, no service starts, no default port is taken, and root is not
# needed. Without apt or a network it says what is missing and goes on: the tests that need it are skipped, or fail
# where CI is set.
set -euo pipefail

here=$1
PATH=$PATH:/usr/sbin:$(printf '%s:' /usr/lib/postgresql/*/bin) # where Debian keeps servers that users do not start
missing=()

servers() { # a line each: folder, program that the tests start, Debian package
    need redis redis-server redis-server
    need valkey valkey-server valkey-server
    need postgres postgres postgresql
    need pgbouncer pgbouncer pgbouncer
    need etcd etcd etcd-server
    need openssl openssl openssl # makes the certificates of servers with TLS
    need zookeeper zkServer.sh zookeeper # with the Java that it runs on
    need consul consul consul # last in Debian 11
}

need() { # folder, program, package
    command -v "$2" >/dev/null || is_unpacked "$1" "$2" || {
        echo "servers: unpacking $3 into $here/$1 (once)"
        unpack "$1" "$3" && is_unpacked "$1" "$2"
    } || missing+=("$2")
}

is_unpacked() { # folder, program
    [ -n "$(find "$here/$1" -path "*bin/$2" -print -quit 2>/dev/null)" ]
}

unpack() { # folder, package
    read_lists &&
        rm -rf "${here:?}/$1" "$work"/debs/*.deb &&
        apt_get --yes --download-only --no-install-recommends install "$2" >>"$work/log" 2>&1 &&
        for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$here/$1" 2>>"$work/log" || return; done &&
        relink "$here/$1"
}

relink() { # folder: what its links mean by /etc, as those of Java do, is in it
    find "$1" -type l -lname '/*' | while read -r link; do
        [ ! -e "$1$(readlink "$link")" ] || ln -sfnr "$1$(readlink "$link")" "$link"
    done
}

# The machine's own sources, with two more suites of each: the backports, where a Debian release gets what came after
# it, and Debian 11 for what later ones have dropped. Only here: a source list of the system would offer them to
# everything that is ever installed. Of several versions apt takes the newest that is not a backport.
read_lists() {
    [ ! -e "$work/sources/read" ] || return 0
    command -v apt-get dpkg >/dev/null && . /etc/os-release && [ -n "${VERSION_CODENAME:-}" ] || return
    local source suite=$VERSION_CODENAME more
    for source in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
        [ -r "$source" ] && cp "$source" "$work/sources/" || continue
        for more in "$suite-backports" bullseye; do
            case $source in
            *.list) sed -n "s/^\(deb .* \)$suite /\1$more /p" "$source" ;;
            *) awk -v RS= -v ORS='\n\n' -v s="$suite" -v more="$more" \
                'sub("Suites:[^\n]* ?" s "( [^\n]*)?\n", "Suites: " more "\n")' "$source" ;;
            esac >"$work/sources/$more-${source##*/}"
        done
    done
    apt_get update >>"$work/log" 2>&1 || true # a source that is out of reach is no reason not to try the others
    touch "$work/sources/read"
}

apt_get() {
    apt-get --quiet=2 "${apt_options[@]}" "$@"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$here" "$work"/{sources,lists/partial,debs/partial}
echo '*' >"$here/.gitignore"
apt_options=(
    -o "Dir::Etc::SourceList=/dev/null"
    -o "Dir::Etc::SourceParts=$work/sources"
    -o "Dir::State::Lists=$work/lists"
    -o "Dir::Cache=$work"
    -o "Dir::Cache::Archives=$work/debs"
    -o "Acquire::Retries=2"
    -o "APT::Sandbox::User="   # the unprivileged user of apt may not write here
    -o "Debug::NoLocking=true" # the lock is root's, and we write nothing that it guards
)

servers
if [ ${#missing[@]} -gt 0 ]; then
    echo "servers: missing ${missing[*]}; on Debian and Ubuntu apt-get installs them. Tests that need them are skipped" >&2
    [ -z "${CI:-}" ] || cat "$work/log" >&2 2>/dev/null || true
else
    touch "$here/.stamp" # else the next `make test` tries again
fi
