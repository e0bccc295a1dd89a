#!/usr/bin/env bash
# Formatting, lints, docs, house rules, licences and advisories. Stops at the first that fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$HOME/.cargo/bin:$PATH"

step() { printf '\n== %s\n' "$1"; }

step "formatting"
cargo fmt --all --check
(cd fuzz && cargo fmt --check)

step "house rules"
scripts/tidy.sh

step "documents: links, anchors, table of contents"
scripts/book.sh check

step "clippy: warnings are errors"
features=()
command -v mpicc >/dev/null && features=(--features venice-mpi/mpi)
cargo clippy --workspace --all-targets "${features[@]}" --locked -- -D warnings

step "docs: warnings are errors"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

step "licences, bans, sources"
cargo deny --locked --log-level error check licenses bans sources
# A workspace of its own, under the same rules.
fuzz_deny=(cargo deny --manifest-path fuzz/Cargo.toml --config deny.toml --locked --log-level error)
"${fuzz_deny[@]}" check licenses bans sources

# The advisory database lives on the network. Without it there is nothing to check against:
# that is said loudly and is not fatal. With it, an advisory is.
step "advisories"
if timeout 120 cargo deny --locked --log-level error fetch db >target/deny-fetch.log 2>&1; then
    cargo deny --locked --log-level error check --disable-fetch advisories
    "${fuzz_deny[@]}" check --disable-fetch advisories
else
    sed 's/^/    /' target/deny-fetch.log | tail -n 5
    echo "WARNING: ADVISORIES WERE NOT CHECKED: their database cannot be reached from here."
fi
