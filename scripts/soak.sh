#!/usr/bin/env bash
# Runs the program tests again and again for SOAK_MINUTES (default 30); stops at the first failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$HOME/.cargo/bin:/usr/local/sbin:/usr/sbin:/sbin:$PATH"

minutes="${SOAK_MINUTES:-30}"
end=$((SECONDS + minutes * 60))
round=0
while ((SECONDS < end)); do
    round=$((round + 1))
    echo "== soak: round $round, $(((end - SECONDS) / 60)) minutes left"
    timeout --kill-after=60s 30m cargo test --release --locked -p venice-programs-test -- \
        --test-threads=1 </dev/null
done
echo "soak: $round rounds without a failure"
