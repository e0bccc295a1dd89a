# What a machine can lack, and how to find out. Sourced by scripts/test.sh.
#
# A test that cannot run here prints one line
#     SKIPPED: <test>: no <feature>[: details]
# with a feature of this list, and returns. `scripts/test.sh` believes it only if the feature is
# really absent: otherwise, in CI, the skip is a failure. Programs that scripts/setup.sh installs
# (redis-server, java, ...) are no features: a test that misses one of them fails.

lacks() { # lacks FEATURE: true if this machine really lacks it
    case "$1" in
        root) [[ $(id -u) != 0 ]] ;;
        autogroup) [[ ! -e /proc/self/autogroup ]] ;;
        overlay) ! unshare --mount sh -c "d=/mnt; mount -t tmpfs tmpfs \$d && mkdir \$d/u \$d/w \$d/r && mount -t overlay overlay -o lowerdir=/,upperdir=\$d/u,workdir=\$d/w \$d/r" 2>/dev/null ;;
        dpkg-dev) ! command -v dpkg-shlibdeps >/dev/null ;;
        userfaultfd) ! { [[ -e /dev/userfaultfd ]] || [[ -e /proc/sys/vm/unprivileged_userfaultfd ]]; } ;;
        uffd-move) ! kernel_at_least 6 8 ;;
        pass-rights) ! kernel_at_least 6 16 ;;
        bpf) [[ $(id -u) != 0 || ! -r /sys/kernel/btf/vmlinux ]] || grep -qs '\[confidentiality\]' /sys/kernel/security/lockdown ;;
        netns) ! unshare --net true 2>/dev/null ;;
        user-namespaces) ! unshare --user true 2>/dev/null ;;
        veth) ! unshare --net ip link add venice-a type veth peer name venice-b 2>/dev/null ;;
        bridge) ! unshare --net ip link add venice-br type bridge 2>/dev/null ;;
        tbf) ! unshare --net tc qdisc add dev lo root tbf rate 1mbit burst 2kb limit 4kb 2>/dev/null ;;
        memory-cgroup) ! { [[ -d /sys/fs/cgroup/memory ]] || grep -qw memory /sys/fs/cgroup/cgroup.controllers 2>/dev/null; } ;;
        zram) ! { [[ -e /sys/class/zram-control ]] || modprobe -n zram 2>/dev/null; } ;;
        fuse) [[ ! -e /dev/fuse ]] ;;
        loop) [[ ! -e /dev/loop-control ]] ;;
        swap) [[ ! -e /proc/swaps ]] ;;
        huge-pages) [[ ! -d /sys/kernel/mm/hugepages ]] ;;
        memory-blocks) ! some_memory_block_goes ;;
        core-files) [[ $(</proc/sys/kernel/core_pattern) == *[\|/]* ]] ;;
        cores-4) (($(nproc) >= 4)) && return 1 || return 0 ;;
        qemu) ! scripts/guest.sh >/dev/null 2>&1 ;;
        ns3) ! pkg-config --exists ns3-internet 2>/dev/null ;;
        promtool) ! command -v promtool >/dev/null 2>&1 ;;
        newer-kernel) ! scripts/guest.sh newer >/dev/null 2>&1 ;;
        *) return 1 ;;
    esac
}

# Whether the kernel lets go of any memory block; it has it back at once.
some_memory_block_goes() {
    local state
    for state in /sys/devices/system/memory/memory*/state; do
        [[ -w $state && $(<"$state") == online ]] || continue
        # The kernel tries until it is interrupted.
        timeout 5 bash -c 'echo offline >"$1"' bash "$state" 2>/dev/null || continue
        echo online >"$state"
        return 0
    done
    return 1
}

kernel_at_least() { # kernel_at_least MAJOR MINOR
    local major minor
    IFS=.- read -r major minor _ < <(uname -r)
    ((major > $1 || (major == $1 && minor >= $2)))
}
