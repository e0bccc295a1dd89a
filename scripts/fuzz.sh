#!/usr/bin/env bash
# Fuzzes the decoders of the wire format, the fabric's state machines and what opens sealed datagrams.
#
#   FUZZ_SECONDS=10 scripts/fuzz.sh [TARGET...]    so long for each target; all of them unless named
#   FUZZ_SEED=1 scripts/fuzz.sh                    from a fresh clone the same inputs every time
#
# Stable Rust will do: the targets are built without a sanitizer, for what they reach is hardly ever
# unsafe code (the ciphers are, a library's), and what is looked for are panics, broken assertions,
# overflows and hangs. What is found new stays under fuzz/target; the kept corpus is only read. An input that breaks something is written
# to fuzz/artifacts/TARGET, and the way to run it again is printed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$HOME/.cargo/bin:$PATH"

seconds="${FUZZ_SECONDS:-10}"
seed="${FUZZ_SEED:-0}" # 0: drawn anew
if ! command -v cargo-fuzz >/dev/null 2>&1; then
    echo "fuzz: cargo-fuzz is not here: scripts/setup.sh all" >&2
    exit 1
fi
targets=("$@")
((${#targets[@]})) || mapfile -t targets < <(cargo fuzz list)

cargo fuzz build --sanitizer none
for target in "${targets[@]}"; do
    printf '\n== fuzzing %s for %s s\n' "$target" "$seconds"
    found="fuzz/target/corpus/$target"
    log="fuzz/target/$target.log"
    mkdir -p "$found"
    # The inputs are short lists of steps; one that takes seconds hangs.
    if cargo fuzz run --sanitizer none "$target" "$found" "fuzz/corpus/$target" -- \
        -seed="$seed" -max_total_time="$seconds" -max_len=2000 -len_control=0 -timeout=20 -print_final_stats=1 \
        >"$log" 2>&1 </dev/null; then
        grep -aE '^stat::number_of_executed_units' "$log"
    else
        tail -n 60 "$log"
        echo "fuzz: $target broke: its output is in $log" >&2
        exit 1
    fi
done
