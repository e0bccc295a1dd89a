#!/usr/bin/env bash
# scripts/size.sh [BINARY]: the size of the product's release binary once stripped, and of what it is made.
# Fails when it has MOST_MIB (default 20) or more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

binary="${1:-target/release/venice}"
most_mib="${MOST_MIB:-20}"
[[ -e $binary ]] || { echo "size: no $binary: make build" >&2; exit 1; }
stripped="$(mktemp)"
trap 'rm -f "$stripped"' EXIT
objcopy --strip-all "$binary" "$stripped"
bytes="$(stat -c %s "$stripped")"

echo "$binary: $((bytes / 1024)) KiB stripped, $(($(stat -c %s "$binary") / 1024)) KiB with symbols"
echo "Sections, KiB:"
size -A "$stripped" | awk '$2 + 0 >= 65536 && $1 ~ /^\./ { printf "  %-16s %8d\n", $1, $2 / 1024 }' | sort -k2 -rn
echo "Code by crate, KiB (generic code counts where it is instantiated):"
nm --size-sort --radix=d --demangle=rust "$binary" | awk '
    tolower($2) == "t" {
        name = $3
        for (field = 4; field <= NF; field++) name = name " " $field
        gsub(/^[<&(*]+|^mut |^dyn /, "", name)
        sub(/(::|[ <>,({\[;]).*/, "", name)
        if (name !~ /^[a-z_][a-z0-9_]*$/) name = "other"
        of[name] += $1
    }
    END { for (name in of) printf "  %-24s %8d\n", name, of[name] / 1024 }' | sort -k2 -rn | awk 'NR <= 25'
((bytes < most_mib * 1024 * 1024)) || { echo "size: $binary has $((bytes / 1048576)) MiB stripped: fewer than $most_mib are allowed" >&2; exit 1; }
