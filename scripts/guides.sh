#!/usr/bin/env bash
# Runs the commands of the guide and the runbooks: every ```sh,run block of a page, in order, in one shell.
#
#   scripts/guides.sh                           all pages of guide and operations with such blocks
#   scripts/guides.sh docs/guide/swap.md...     these pages
#
# The shell has `set -euo pipefail`, the clone as its working directory, and the built binaries first in PATH
# (VENICE_TARGET, default target/release; `make build`). Each page has a run directory of its own and 15
# minutes. What is still up at its end is stopped. Needs root: some pages make network namespaces.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C.UTF-8

binaries="$(realpath -m "${VENICE_TARGET:-target/release}")"
for file in venice libvenice_preload.so libvenice_opencl.so; do
    [[ -e $binaries/$file ]] || { echo "guides: no $binaries/$file: make build" >&2; exit 2; }
done
pages=("$@")
((${#pages[@]})) || mapfile -t pages < <(grep -rl --include='*.md' '^```sh,run *$' docs/guide docs/operations | sort)
for page in "${pages[@]}"; do
    grep -q '^```sh,run *$' "$page" || { echo "guides: $page: no \`\`\`sh,run block" >&2; exit 2; }
done

# Settings of the caller must not reach the commands.
for name in "${!VENICE_@}"; do unset "$name"; done
export PATH="$binaries:$PATH:/usr/local/sbin:/usr/sbin:/sbin"
# shellcheck source=scripts/sessions.sh
source scripts/sessions.sh

work="$(mktemp -d -t venice-guides.XXXXXX)"
job=

# Stops what a page has left behind: its background commands, then its rack.
clean_up() {
    local status=0
    # The page's shell and all its commands are one process group.
    [[ -z $job ]] || kill -TERM -- "-$job" 2>/dev/null || true
    job=
    timeout --kill-after=10s 2m venice down >"$work/down.log" 2>&1 || status=$?
    ((status == 0)) || { echo "guides: venice down ended with $status:" >&2; cat "$work/down.log" >&2; }
    return "$status"
}
trap 'clean_up || true; rm -rf "$work"; exit 130' INT TERM

# The page as a script: the lines of its blocks where they stand in the page, all others empty, so that
# the numbers of the lines are those of the page.
script_of() { # script_of PAGE
    awk -v page="$1" -v quote="'" '
        NR == 1 {
            printf "trap %sguide_line=$LINENO%s ERR; ", quote, quote
            printf "trap %sguide_status=$?; ((guide_status == 0)) || ", quote
            printf "echo \"guides: %s:${guide_line:-$guide_block}: failed with $guide_status, ", page
            printf "in the block of line $guide_block\" >&2%s EXIT; guide_block=1; ", quote
        }
        inside && /^```[ \t]*$/ { inside = 0; print ""; next }
        inside { print; next }
        other && /^```[ \t]*$/ { other = 0; print ""; next }
        !other && /^```sh,run[ \t]*$/ { inside = 1; print "guide_block=" NR; next }
        !other && /^```/ { other = 1 }
        { print "" }' "$1"
}

run_page() { # run_page PAGE
    local page="$1" script status=0
    script="$work/$(basename "$page")"
    script_of "$page" >"$script"
    export VENICE_RUN_DIR="$work/rack"
    # Job control makes the page a process group, which clean_up ends as a whole.
    set -m
    timeout --kill-after=60s 15m bash -euo pipefail "$script" </dev/null &
    job=$!
    set +m
    wait "$job" || status=$?
    ((status != 124 && status != 137)) || echo "guides: $page: stopped after 15 minutes" >&2
    clean_up || status=1
    return "$status"
}

failed=()
for page in "${pages[@]}"; do
    printf '\n== %s: %s blocks\n' "$page" "$(grep -c '^```sh,run *$' "$page")"
    began=$SECONDS
    run_page "$page" || failed+=("$page")
    echo "== $((SECONDS - began)) s: $page"
done
rm -rf "$work"

printf '\nguides: %s of %s pages passed\n' "$((${#pages[@]} - ${#failed[@]}))" "${#pages[@]}"
for page in "${failed[@]}"; do echo "guides: $page failed"; done
((${#failed[@]} == 0))
