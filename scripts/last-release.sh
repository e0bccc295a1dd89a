#!/usr/bin/env bash
# Builds the `venice` of the last release from the history, for tests of mixed versions, and prints its
# path. Needs a clone with history: without it, it says so and prints nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$HOME/.cargo/bin:$PATH"

# The release before this one. Change it with each release.
commit=fb2d8b4b11275f2cf8a8301f5e258b1f94880988
if ! full="$(git rev-parse --verify --quiet "$commit^{commit}")"; then
    echo "SKIPPED: the history lacks $commit, the last release: clone with history" >&2
    exit 0
fi
built="$PWD/target/last-release/$full"
if [[ ! -x $built/debug/venice ]]; then
    tree="$built/tree"
    rm -rf "$tree"
    mkdir -p "$tree"
    git archive "$full" | tar -x -C "$tree"
    (cd "$tree" && CARGO_TARGET_DIR="$built" cargo build --locked -p venice -p venice-preload >&2)
    rm -rf "$tree" "$built"/debug/{build,deps,incremental}
fi
echo "$built/debug/venice"
