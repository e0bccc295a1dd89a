#!/usr/bin/env bash
# scripts/touched.sh [BASE]: the groups of `make test-all` that the changes since BASE (default origin/main,
# else the last commit) could break, on one line. `make test-all GROUP="$(scripts/touched.sh)"` runs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

base="${1:-$(git rev-parse --verify --quiet origin/main || echo HEAD~1)}"
git rev-parse --verify --quiet "$base^{commit}" >/dev/null || { echo "touched: no commit '$base'" >&2; exit 2; }

{ git diff --name-only "$base"; git ls-files --others --exclude-standard; } | while IFS= read -r file; do
    case "$file" in
        crates/venice-wire/* | crates/venice-fabric/*) echo "simulation channels verbs racks programs fuzz" ;;
        crates/venice-rack/*) echo "simulation daemons kill-loops racks fuzz" ;;
        crates/venice-sim/* | crates/venice-simkernel/*) echo "simulation racks benchmarks" ;;
        crates/venice-experiment/* | crates/venice-tcp/* | crates/venice-warehouse/* | crates/venice-access/* | crates/venice-scale/* | crates/venice-worlds/*) echo "simulation benchmarks" ;;
        crates/venice-mpi/*) echo "simulation" ;;
        crates/venice-model/* | crates/venice-lab/* | crates/venice-measure/*) echo "benchmarks" ;;
        crates/venice-ports/src/verbs/*) echo "verbs channels" ;;
        crates/venice-ports/*) echo "channels verbs racks programs benchmarks" ;;
        crates/venice-memory/src/hotplug/* | crates/venice-memory/src/donor/*) echo "memory-devices programs daemons" ;;
        crates/venice-memory/src/paged/window*) echo "window programs" ;;
        crates/venice-memory/*) echo "simulation programs window swap verbs bindings" ;;
        crates/venice-accel/*) echo "daemons programs fuzz" ;;
        crates/venice-opencl/*) echo "programs" ;;
        crates/venice-cuda/* | crates/venice-fake-cuda/*) echo "daemons" ;;
        crates/venice-preload/*) echo "programs window" ;;
        crates/venice-swap/* | crates/venice-fuse/*) echo "swap programs" ;;
        crates/venice-control/* | crates/venice-observe/* | crates/venice-store/* | crates/venice-monitor/*) echo "daemons kill-loops" ;;
        crates/venice-agent/*) echo "daemons kill-loops memory-devices" ;;
        crates/venice-sockets/*) echo "daemons swap programs" ;;
        crates/venice-recipient/*) echo "daemons programs swap bindings" ;;
        crates/venice-client/* | crates/venice-c/* | crates/venice-py/*) echo "bindings" ;;
        crates/venice-service/*) echo "daemons kill-loops fuzz" ;;
        crates/venice-cli/*) echo "daemons benchmarks" ;;
        crates/venice/src/swap/*) echo "swap" ;;
        crates/venice/src/run/*) echo "programs window swap" ;;
        crates/venice/*) echo "daemons packaging guides" ;;
        crates/venice-e2e/tests/it/racks.rs | crates/venice-e2e/src/racks/*) echo "racks" ;;
        crates/venice-e2e/*) echo "programs" ;;
        crates/venice-testkit/src/guest/* | scripts/guest*) echo "verbs swap memory-devices" ;;
        crates/venice-testkit/*) echo "daemons kill-loops" ;;
        packaging/* | scripts/install.sh | scripts/deb.sh | scripts/wheel.sh | scripts/size.sh) echo "packaging" ;;
        docs/guide/* | docs/operations/* | scripts/guides.sh) echo "guides" ;;
        fuzz/*) echo "fuzz" ;;
        Cargo.lock | Cargo.toml) echo "programs packaging" ;;
    esac
done | tr ' ' '\n' | sort -u | paste -sd' '
