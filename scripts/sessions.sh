# Sourced by what runs racks beside busy programs. Where the kernel shares processors out by session, it has
# let a rack's daemons, which have sessions of their own, wait for ten seconds behind a busy program
# (Linux 6.18, two processors): donors that live are taken for silent then. Daemons go before other
# sessions where they may; the programs themselves do not. Services of systemd are not shared out so.
autogroup=/proc/sys/kernel/sched_autogroup_enabled
if [[ -r $autogroup && $(<"$autogroup") == 1 ]]; then
    if { echo 0 >"$autogroup"; } 2>/dev/null; then
        trap 'echo 1 >"$autogroup"' EXIT
    else
        echo "WARNING: kernel.sched_autogroup_enabled is 1 and cannot be set: racks may stall" >&2
    fi
fi
