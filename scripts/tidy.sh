#!/usr/bin/env bash
# House rules that no compiler knows: see CONTRIBUTING in README.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

broken=0
complain() { echo "tidy: $1" >&2; broken=1; }

# Where memory is mapped, a process is taken over, C calls, or the kernel is asked for what has no
# safe form (swap, block devices), unsafe code is the point. Nowhere else.
may_be_unsafe=" venice-memory venice-ports venice-preload venice-swap venice-lab venice-measure venice-c venice-py "
# The protocol: no clock, no thread, no socket, no order that changes from run to run.
sans_io="venice-wire venice-model venice-fabric venice-rack"
longest_file_lines=600

for manifest in crates/*/Cargo.toml; do
    crate="$(basename "$(dirname "$manifest")")"
    root="crates/$crate/src/lib.rs"
    [[ -e $root ]] || root="crates/$crate/src/main.rs"
    if [[ $may_be_unsafe != *" $crate "* ]] && ! grep -q '^#!\[forbid(unsafe_code)\]' "$root"; then
        complain "$root: lacks #![forbid(unsafe_code)]"
    fi
    grep -q '^workspace = true' "$manifest" || complain "$manifest: lacks [lints] workspace = true"
done

for crate in $sans_io; do
    while IFS= read -r hit; do
        complain "$hit: the protocol does no I/O (docs/decisions/0001)"
    done < <(grep -rnE '^\s*(pub )?use (std::(net|thread|fs|time::(Instant|SystemTime))|tokio|rand)|Instant::now|SystemTime::now|thread::spawn' \
        "crates/$crate/src" --include='*.rs' || true)
done

while IFS= read -r file; do
    lines="$(wc -l <"$file")"
    ((lines <= longest_file_lines)) || complain "$file: $lines lines: split it (at most $longest_file_lines)"
done < <(git ls-files --cached --others --exclude-standard 'crates/*.rs')

exit "$broken"
