#!/usr/bin/env bash
# Runs a tier of tests and closes with the line `N passed, N failed, N skipped`.
#
#   scripts/test.sh quick              unit and model tests of the protocol and the store, few seeds
#   scripts/test.sh test               every test but the slow ones, one real program for each pair of
#                                      mode, port and protection (the default)
#   scripts/test.sh all [GROUP...]     every test, real programs on the release build, fuzzing, the wheel;
#                                      with GROUPs only these (scripts/test.sh groups lists them)
#
# scripts/groups.sh has the contents of tiers and groups, docs/internals/testing.md what each proves. The
# seconds of each test are kept in target/test-times.tsv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$HOME/.cargo/bin:/usr/local/sbin:/usr/sbin:/sbin:$PATH"
# shellcheck source=scripts/features.sh
source scripts/features.sh
# shellcheck source=scripts/groups.sh
source scripts/groups.sh

tier="${1:-test}"
shift || true
case "$tier" in
    quick | test | all) ;;
    groups) printf '%s\n' "${groups[@]}"; exit 0 ;;
    *) echo "test: unknown tier '$tier': quick, test, all or groups" >&2; exit 2 ;;
esac
for group in "$@"; do
    [[ " ${groups[*]} " == *" $group "* ]] || { echo "test: unknown group '$group': one of ${groups[*]}" >&2; exit 2; }
done

mkdir -p target
log=target/test-output.log
times=target/test-times.tsv
binaries=target/test-binaries.txt
: >"$log"
: >"$binaries"
broken=()
began_all=$SECONDS

# shellcheck source=scripts/sessions.sh
source scripts/sessions.sh

# Other seeds with each commit; the ones that ever failed are pinned in the tests.
rotation=$((16#$(git rev-parse --short=6 HEAD 2>/dev/null || echo 0) % 4))
case "$tier" in
    quick) export VENICE_SEEDS="${VENICE_SEEDS:-5%}" VENICE_SEED_ROTATION="${VENICE_SEED_ROTATION:-$rotation}" ;;
    test) export VENICE_SEEDS="${VENICE_SEEDS:-25%}" VENICE_SEED_ROTATION="${VENICE_SEED_ROTATION:-$rotation}" ;;
    all) ;;
esac

run() { # run LIMIT COMMAND...: shows and keeps the output; a hang ends in a failure
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

# libtest reports the time of a test only where unstable options are allowed. They are allowed to the
# test binaries alone: the compiler and the build scripts do not see the variable.
runner="CARGO_TARGET_$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')_RUNNER"
export "$runner=env RUSTC_BOOTSTRAP=1"
timed=(-Z unstable-options --report-time --show-output)

tests() { # tests LIMIT CARGO-ARGUMENTS... [-- LIBTEST-ARGUMENTS...]
    local limit="$1" cargo=() libtest=()
    shift
    while (($#)) && [[ $1 != -- ]]; do cargo+=("$1"); shift; done
    (($#)) && shift
    libtest=("$@")
    # rustdoc's tests do not know the options of `timed`.
    [[ " ${cargo[*]} " =~ " --"(lib|bins|test|tests)" " ]] || cargo+=(--tests)
    run 40m cargo test "${cargo[@]}" --locked --no-run
    cargo test "${cargo[@]}" --locked --no-run --message-format json 2>/dev/null </dev/null |
        sed -nE 's|.*"manifest_path":"[^"]*/([^/"]+)/Cargo.toml".*"executable":"[^"]*/([^/"]+)".*|\2 \1|p' >>"$binaries" || true
    run "$limit" cargo test "${cargo[@]}" --locked --no-fail-fast -- "${timed[@]}" "${libtest[@]}"
}

case "$tier" in
    quick) quick ;;
    test) default ;;
    all) if (($#)); then for group in "$@"; do "group_${group//-/_}"; done; else everything; fi ;;
esac

# Seconds, crate and name of each test: `Running … (target/debug/deps/it-…)`, then `test NAME ... ok <1.234s>`.
awk '
    NR == FNR { of[$1] = $2; next }
    /^ +Running / { binary = $0; sub(/.*deps\//, "", binary); sub(/\)$/, "", binary) }
    /^test .* \.\.\. .*<[0-9.]+s>$/ { seconds = $NF; gsub(/[<>s]/, "", seconds); print seconds "\t" of[binary] "\t" $2 }
' "$binaries" "$log" | sort -rn >"$times"

# libtest counts what it ran; a test that printed SKIPPED passed without testing.
read -r passed failed < <(awk '
    /^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i == "passed;") passed += $(i - 1)
            if ($i == "failed;") failed += $(i - 1)
        }
    }
    END { print passed + 0, failed + 0 }' "$log")
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

# Once more at the end, where it is easy to find.
while IFS= read -r name; do broken+=("$name failed"); done \
    < <(sed -nE 's/^test (.*) \.\.\. FAILED.*$/\1/p' "$log")
for what in "${broken[@]}"; do echo "test: $what"; done

took="$(((SECONDS - began_all) / 60)) min $(((SECONDS - began_all) % 60)) s"
echo "- Tier: $tier${*:+ $*}, took $took" >target/test-summary.txt
echo "test: tier $tier took $took; the slowest of its tests:"
head -n 10 "$times" | awk -F'\t' '{ printf "    %8.1f s  %s %s\n", $1, $2, $3 }'
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((${#broken[@]} == 0 && failed == 0 && passed > 0))
