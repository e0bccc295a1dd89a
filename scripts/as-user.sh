#!/usr/bin/env bash
# scripts/as-user.sh TEST-BINARY LIBTEST-ARGUMENTS...: runs tests of real programs as an ordinary user.
#
# The user is nobody, whose group may use a helper of root's (`venice helper`); of all privileges the tests
# keep CAP_IPC_LOCK, because agents lock what they lend. Tests that need root are left out. Run as root.
set -euo pipefail

binary="$(realpath "$1")"
shift
venice="$(dirname "$binary")/../venice"
user=65534
folder="$(mktemp -d /tmp/venice-user.XXXXXX)"
helper=
stop() {
    [[ -z $helper ]] || kill "$helper" 2>/dev/null || true
    rm -rf "$folder"
}
trap stop EXIT

chmod 755 "$folder"
install -d -o "$user" -g "$user" "$folder/home"
"$venice" helper --socket "$folder/helper.sock" --socket-group "$(getent group "$user" | cut -d: -f1)" &
helper=$!
for ((i = 0; i < 100; i++)); do [[ -S $folder/helper.sock ]] && break || sleep 0.1; done

cd "$folder/home"
env -i PATH="$PATH" HOME="$folder/home" RUSTC_BOOTSTRAP=1 VENICE_HELPER_SOCKET="$folder/helper.sock" \
    setpriv --reuid "$user" --regid "$user" --clear-groups --bounding-set=-all,+ipc_lock \
    --inh-caps=-all,+ipc_lock --ambient-caps=-all,+ipc_lock \
    "$binary" "$@" | sed -u 's/SKIPPED:/left out as a user:/'
