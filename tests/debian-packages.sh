#!/bin/sh
# Installs Debian packages that tests run live, where they are missing:
#     tests/debian-packages.sh elixir chromium
# A package counts as there if Debian knows it as installed, or if there is a command of its name,
# wherever that came from. Off Debian and Ubuntu the commands have to be put on the PATH by hand.
set -eu

there() {
    command -v "$1" >/dev/null 2>&1 ||
        [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing=
for package in "$@"; do
    there "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

give_up() {
    echo "tests: missing:$missing; $1" >&2
    exit 1
}

command -v apt-get >/dev/null 2>&1 || give_up 'put them on the PATH, then try again'
as_root=
if [ "$(id -u)" != 0 ]; then
    as_root='sudo -n'
    sudo -n true 2>/dev/null || give_up "run: sudo apt-get install$missing"
fi

echo "tests: installing$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT TERM
install() {
    # shellcheck disable=SC2086  # several words each
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet \
        --no-install-recommends $missing >"$log" 2>&1
}
failed() {
    cat "$log" >&2
    give_up "apt-get $1 failed"
}
# The lists of a fresh machine are empty or old: only then is the network asked for new ones.
if ! install; then
    $as_root apt-get update --quiet >"$log" 2>&1 || failed update
    install || failed install
fi
for package in $missing; do
    there "$package" || give_up "apt-get install brought no $package"
done
