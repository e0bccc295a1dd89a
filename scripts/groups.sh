# The tests of each tier, and the groups of the tier `all`. Sourced by scripts/test.sh, which defines `run`
# and `tests`.

groups=(simulation channels verbs swap memory-devices window programs users racks daemons kill-loops benchmarks
    bindings packaging guides fuzz)

# Unit and model tests of the protocol and the store.
quick() {
    tests 2m -p venice-wire -p venice-model -p venice-fabric -p venice-rack -p venice-store --lib --tests
}

# Tests that only the tier `all` runs, by a part of their path. Tests that boot a guest under QEMU, where
# everything is ten to thirty times slower, have `in_guest` in their path; the testkit's own is the one
# boot of the default tier.
slow=(in_guest clock_jumps:: full_disk:: bench_monitor:: last_release:: packages:: nothing_is_lent_twice
    quick_run_measures whole_variants_keep)

# One profile, one build, with the same features for every crate: what is under test is built by it too.
build() { run 40m cargo build --workspace --all-targets --locked; }

# Experiments on ranks of MPI: the feature is not that of the other builds, which need no MPI.
on_ranks() {
    if ! command -v mpicc >/dev/null || ! command -v mpirun >/dev/null; then
        echo "test: venice-mpi is left out: no MPI here"
        return
    fi
    tests 20m --workspace --features venice-mpi/mpi --test alone_ranks
}

default() {
    local part skipped=()
    for part in "${slow[@]}"; do skipped+=(--skip "$part"); done
    # Of the real programs, one for each pair of mode, port and protection.
    for part in crates/venice-e2e/tests/it/programs/*.rs; do
        part="$(basename "$part" .rs)"
        [[ $part == mod || $part == pairwise ]] || skipped+=(--skip "programs::$part::")
    done
    build
    tests 30m --workspace --lib --bins --tests -- "${skipped[@]}"
}

everything() {
    build
    with_last_release
    tests 60m --workspace --lib --bins --tests -- --skip programs::
    run 10m cargo test --workspace --locked --doc
    on_ranks
    of_programs programs::
    group_users
    group_packaging
    group_guides
    group_fuzz
}

# Tests of this release beside the last one, `last_release::`.
with_last_release() {
    run 40m scripts/last-release.sh
    VENICE_LAST_RELEASE="$(scripts/last-release.sh)"
    export VENICE_LAST_RELEASE
}

build_release() { run 40m cargo build --release --locked -p venice -p venice-preload -p venice-opencl -p venice-cuda -p venice-c -p venice-py -p venice-lab; }

# Real programs run on the release build, as users would run them, and one at a time: each is bounded by its
# own rack, not by its neighbours.
of_programs() { # of_programs FILTER...
    build_release
    tests 40m --release -p venice-e2e -- --test-threads=1 "$@"
}

whole() { # whole CARGO-ARGUMENTS... [-- FILTER...]: tests of the tier `all` among others
    build
    tests 40m "$@"
}

group_simulation() {
    whole -p venice-simkernel -p venice-experiment -p venice-tcp -p venice-warehouse -p venice-access -p venice-scale -p venice-worlds -p venice-fabric -p venice-rack -p venice-sim
    whole -p venice-memory --lib
    on_ranks
}
group_channels() { whole -p venice-ports; }
group_verbs() { whole -p venice-ports -- verbs in_guest && of_programs programs::over_verbs; }
group_swap() { whole -p venice-swap && whole -p venice --test it -- swap out_of_memory_in_guest; }
group_memory_devices() {
    whole -p venice --test it -- window_in_guest
    whole -p venice --test alone_memory_blocks
    of_programs programs::memory_devices
}
group_window() { whole -p venice-memory --lib -- window && of_programs programs::window; }
group_programs() { of_programs programs::; }
# Real programs of an ordinary user, with a helper of root's.
group_users() {
    if ! setpriv --reuid 65534 --regid 65534 --clear-groups test -r scripts/as-user.sh; then
        echo "test: the group users is left out: other users may not read $PWD"
        return
    fi
    build_release
    local as_root="${!runner}"
    export "$runner=$PWD/scripts/as-user.sh"
    tests 40m --release -p venice-e2e --test it -- --test-threads=1 programs::forks programs::interpreters \
        programs::own_calls programs::python programs::runtimes programs::semantics \
        programs::tools programs::web_server
    export "$runner=$as_root"
}
group_racks() { of_programs racks::; }
group_daemons() {
    with_last_release
    run 40m cargo build --locked -p venice-cuda -p venice-fake-cuda
    whole -p venice-control -p venice-store -p venice-monitor -p venice-service -p venice-accel -p venice-agent \
        -p venice-recipient -p venice
}
group_kill_loops() {
    whole -p venice-store
    whole -p venice --test alone_whoever_dies
    whole -p venice --test it -- partitions several_monitors clock_jumps full_disk
}
group_benchmarks() {
    whole -p venice-lab -p venice-measure
    of_programs programs::bench programs::paper_figures
}
group_bindings() { whole -p venice-client -p venice-c -p venice-py && of_programs programs::python; }
group_packaging() {
    build_release
    run 5m scripts/size.sh
    whole -p venice --test it -- packaging packages kubernetes
    of_programs programs::installed
    run 40m scripts/wheel.sh
}
group_guides() { build_release && run 40m scripts/guides.sh; }
group_fuzz() { FUZZ_SECONDS="${FUZZ_SECONDS:-10}" FUZZ_SEED="${FUZZ_SEED:-1}" run 40m scripts/fuzz.sh; }
