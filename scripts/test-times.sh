#!/usr/bin/env bash
# scripts/test-times.sh: docs/results/test-times.md anew, from the last run of scripts/test.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

times=target/test-times.tsv
summary=target/test-summary.txt
[[ -s $times && -s $summary ]] || { echo "test-times: nothing recorded: run make test" >&2; exit 1; }
{
    echo "# Test times"
    echo
    echo "The slowest fifty tests of the tier below, in seconds of wall clock, as the test runner recorded them. Tests of one binary run side by side, so their sum is more than the tier took. \`scripts/test-times.sh\` writes this page after a run of \`make test\`."
    echo
    cat "$summary"
    echo "- Machine: $(nproc) processors ($(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n1)), Linux $(uname -r | cut -d- -f1)"
    echo "- Date: $(date -u +%F), commit: $(git rev-parse --short HEAD)"
    echo "- Tests recorded: $(wc -l <"$times"), their sum: $(awk '{ sum += $1 } END { printf "%d", sum }' "$times") s"
    echo
    echo "| seconds | crate | test |"
    echo "|---:|---|---|"
    head -n 50 "$times" | awk -F'\t' '{ printf "| %.1f | `%s` | `%s` |\n", $1, $2, $3 }'
} >docs/results/test-times.md
