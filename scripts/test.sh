#!/usr/bin/env bash
# Runs every test and closes with the line `N passed, N failed, N skipped`.
#
# The crates' own tests run with overflow checks and debug assertions on; the programs (a database,
# a compiler, a JVM ...) run on the release build, as users would run them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$HOME/.cargo/bin:/usr/local/sbin:/usr/sbin:/sbin:$PATH"
# shellcheck source=scripts/features.sh
source scripts/features.sh

mkdir -p target
log=target/test-output.log
: >"$log"
broken=()

# shellcheck source=scripts/sessions.sh
source scripts/sessions.sh

run() { # run LIMIT COMMAND...: its output is shown and kept; a hang ends in a failure
    local limit="$1" status=0 began=$SECONDS
    shift
    printf '\n== %s\n' "$*"
    timeout --kill-after=60s "$limit" "$@" </dev/null 2>&1 | tee -a "$log" || status=${PIPESTATUS[0]}
    echo "== $((SECONDS - began)) s: $*"
    case $status in
        0) ;;
        124 | 137) broken+=("'$*' was stopped after $limit") ;;
        *) broken+=("'$*' ended with $status") ;;
    esac
}

# What compiles has limits of its own: they are there for what hangs, not for a slow machine.
everything=(--workspace --locked --no-fail-fast)
programs=(--release -p venice-e2e --locked --no-fail-fast)
run 30m cargo build --release --locked -p venice -p venice-preload -p venice-c -p venice-py
# `venice run` looks for the shim beside itself, in the tests of the binary too.
run 30m cargo build --locked -p venice-preload
run 30m cargo test "${everything[@]}" --no-run
# The paths of the program tests begin with their module.
run 30m cargo test "${everything[@]}" -- --show-output --skip programs::
run 15m cargo test "${programs[@]}" --no-run
# One test at a time: each has a rack to itself and is bounded by it, not by its neighbours.
run 30m cargo test "${programs[@]}" -- programs:: --show-output --test-threads=1

# libtest counts what it ran; a test that printed SKIPPED passed without testing.
read -r passed failed ignored < <(awk '
    /^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i == "passed;") passed += $(i - 1)
            if ($i == "failed;") failed += $(i - 1)
            if ($i == "ignored;") ignored += $(i - 1)
        }
    }
    END { print passed + 0, failed + 0, ignored + 0 }' "$log")
skipped=0
while IFS= read -r line; do
    skipped=$((skipped + 1))
    passed=$((passed - 1))
    feature="$(sed -nE 's/.*SKIPPED:? [^ ]+: (no|needs) ([a-z0-9-]+).*/\2/p' <<<"$line")"
    if [[ -n $feature ]] && lacks "$feature"; then
        echo "test: $line"
    elif [[ ${CI:-} == true ]]; then
        broken+=("$line: but this machine has it: counted as failed")
        skipped=$((skipped - 1))
        failed=$((failed + 1))
    else
        echo "test: WARNING: $line: but this machine has it; in CI this would fail" >&2
    fi
done < <(grep -aE '^(\*\*\* )?SKIPPED:? ' "$log" | sort -u || true)

# Once more at the end, where whoever looks at thousands of lines looks first.
while IFS= read -r name; do broken+=("$name failed"); done \
    < <(sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p' "$log")
for what in "${broken[@]}"; do echo "test: $what"; done

printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$((skipped + ignored))"
((${#broken[@]} == 0 && failed == 0 && passed > 0))
