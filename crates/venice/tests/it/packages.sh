#!/bin/bash
# packages.sh DEBS NEWER: installs the packages in DEBS into a copy of this machine's root, uses them, installs
# those in NEWER over them while a rack runs, removes and purges them. In a mount namespace of its own; what it
# writes is in memory. The copy has no running systemd, as a container.
set -euo pipefail
debs="$1" newer="$2"
fail() { echo "packages: $*" >&2; exit 1; }

over=/mnt
mount -t tmpfs -o size=4g tmpfs "$over"
mkdir "$over"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$over/upper,workdir=$over/work" "$over/root" || exit 77
root="$over/root"
for name in proc dev sys; do mount --rbind "/$name" "$root/$name"; done
for name in run tmp var/tmp; do mount -t tmpfs tmpfs "$root/$name"; done
mkdir "$root/tmp/debs" "$root/tmp/newer"
cp "$debs"/*.deb "$root/tmp/debs"
cp "$newer"/*.deb "$root/tmp/newer"
in_root() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"; }

# A machine that has Venice already, by another way.
in_root rm -rf /usr/local/bin/venice /etc/venice /var/lib/venice
in_root sed -i '/^venice:/d' /etc/group /etc/gshadow

in_root sh -c 'dpkg -i /tmp/debs/*.deb'
in_root venice --version
in_root getent group venice >/dev/null || fail "no group venice"
in_root venice doctor --json >"$over/doctor" || true
grep -q '/usr/lib/venice/libvenice_preload.so' "$over/doctor" || fail "the shim is not found"
rm "$over/doctor"
in_root systemd-analyze verify /usr/lib/systemd/system/venice-{monitor,agent,helper,swap-helper}.service
in_root python3 -c 'import venice, importlib.metadata; importlib.metadata.version("venice")'
echo '#include <venice.h>' | in_root sh -c 'cc $(pkg-config --cflags venice) -fsyntax-only -x c -'
in_root ldd /usr/lib/x86_64-linux-gnu/libvenice.so.0 | grep -q 'not found' && fail "libvenice lacks a library"

# Configuration as it comes: the address of `init`, the name and address of `join`.
in_root venice init --address 127.0.0.1:17480 >"$over/init"
in_root sh -c 'venice monitor --config /etc/venice/monitor.toml 2>/tmp/monitor.log & echo $! >/tmp/monitor.pid'
token="$(grep -oE '[0-9a-f.]+@127.0.0.1:17480' "$over/init")"
rm "$over/init"
for _ in $(seq 100); do in_root venice nodes >/dev/null 2>&1 && break; sleep 0.1; done
in_root venice join --name node7 "$token" >/dev/null
in_root sed -i 's/^# lend = .*/lend = "64MiB"/; s|^shm_socket = .*||' /etc/venice/agent.toml
in_root sh -c 'venice agent --config /etc/venice/agent.toml 2>/tmp/agent.log & echo $! >/tmp/agent.pid'
for _ in $(seq 100); do in_root venice nodes 2>/dev/null | grep -q 'node7 *up' && break; sleep 0.1; done
in_root venice nodes | grep 'node7 *up' || { cat "$root"/tmp/*.log; fail "node7 is not up"; }
in_root venice get memory=16MiB -- true

# A newer version over it, while they run: the configuration stays, and so do the daemons.
in_root sh -c 'dpkg -i /tmp/newer/*.deb'
in_root grep -q '^lend = "64MiB"' /etc/venice/agent.toml || fail "the configuration was replaced"
in_root venice get memory=16MiB -- true
in_root sh -c 'kill $(cat /tmp/agent.pid) && kill $(cat /tmp/monitor.pid)'
# And the rack of one command.
in_root venice up --nodes 1 --lend 64MiB
in_root venice run --local 16MiB --remote 32MiB -- sort /etc/passwd >/dev/null
in_root venice down

names="venice-server python3-venice libvenice-dev libvenice0 venice"
in_root dpkg -r $names
in_root sh -c '! command -v venice' || fail "venice is still there"
[[ -e $root/etc/venice/agent.toml ]] || fail "the configuration was removed"
in_root dpkg -P $names
for path in etc/venice usr/lib/venice usr/lib/systemd/system/venice-agent.service usr/lib/sysusers.d/venice.conf; do
    [[ ! -e $root/$path ]] || fail "/$path is still there"
done
[[ -e $root/var/lib/venice/monitor/identity/authority.key ]] || fail "the authority was removed"
echo "packages: all right"
