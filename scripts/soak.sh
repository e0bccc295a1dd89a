#!/usr/bin/env bash
# First the data-integrity soak, for SOAK_MINUTES (default 60): stress-ng --verify, Redis and sqlite with
# two copies of their far memory, while donors are killed, stalled, drained and short of memory; every byte is checked.
# Then simulated racks and control planes with fresh seeds, the small experiments with fresh seeds on one
# thread and on two, survival of far memory in virtual time, the properties of the state machines with many
# fresh operation sequences, racks of processes over real ports, racks whose Monitor Nodes, etcd and agents
# are killed and stopped, and the program tests, again and again for SOAK_SEED_MINUTES (default 30). Stops at
# the first failure.
#
#   SOAK_MINUTES=600 SOAK_WHAT=integrity scripts/soak.sh     only the first, all night
#   SOAK_SEED_MINUTES=600 SOAK_WHAT=sim scripts/soak.sh      only simulated racks
#   SOAK_SEED_MINUTES=600 SOAK_WHAT=control scripts/soak.sh  only simulated control planes
#   SOAK_WHAT=experiments scripts/soak.sh                    only experiments, the long one first (half an hour)
#
# A seed that fails is printed with the command that replays it, and the smallest scenario that
# still fails is left in target/. What the first did is in target/soak-report.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$HOME/.cargo/bin:/usr/local/sbin:/usr/sbin:/sbin:$PATH"

# shellcheck source=scripts/sessions.sh
source scripts/sessions.sh

minutes="${SOAK_MINUTES:-60}"
seed_minutes="${SOAK_SEED_MINUTES:-30}"
what="${SOAK_WHAT:-all}"
case "$what" in
    all | integrity | sim | control | experiments | survival | properties | ports | monitors | programs) ;;
    *)
        echo "soak: SOAK_WHAT is all, integrity, sim, control, experiments, survival, properties, ports, monitors or programs, not '$what'" >&2
        exit 2
        ;;
esac

integrity() { # integrity MINUTES: over each port in turn, ten minutes at a time
    local until=$((SECONDS + $1 * 60)) report=target/soak-report.txt left port
    if [[ $(id -u) != 0 ]]; then
        echo "SKIPPED: the data-integrity soak: no root"
        [[ $what != integrity ]]
        return
    fi
    cargo build --release --locked -p venice -p venice-preload -p venice-e2e -p venice-lab
    rm -f "$report"
    while ((SECONDS < until)); do
        for port in shm udp; do
            left=$((until - SECONDS))
            ((left > 0)) || break
            VENICE_BIN="$PWD/target/release/venice" target/release/venice-soak --port "$port" \
                --seconds "$((left < 600 ? left : 600))" --report "$report" || return 1
        done
    done
    cat "$report"
}

simulated() { # simulated rack|control MINUTES: on fresh seeds, on every core
    local until=$((SECONDS + $2 * 60)) jobs=() pid failed=0
    mkdir -p target
    for ((core = 0; core < $(nproc); core++)); do
        (
            while ((SECONDS < until)); do
                seed="$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')"
                target/release/venice sim "$1" --random --seeds 200 --seed "$seed" \
                    --save "target/sim-failed-$seed.toml" || exit 1
            done
        ) &
        jobs+=($!)
    done
    for pid in "${jobs[@]}"; do
        wait "$pid" || failed=1
    done
    return "$failed"
}

experiments() { # experiments MINUTES: on fresh seeds, a thread and two give the same events
    local until=$((SECONDS + $1 * 60)) seed name threads hashes=()
    cargo build --release --locked -p venice-lab
    while ((SECONDS < until)); do
        seed="$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')"
        for name in $(target/release/venice-lab sim list | awk 'NR > 1 { print $1 }'); do
            for threads in 1 2; do
                hashes[threads]="$(target/release/venice-lab sim run "$name" --quick --seed "$seed" \
                    --threads "$threads" --json --out target/soak-experiment 2>/dev/null |
                    grep -o '"trace_hash": *"[^"]*"')" || {
                    echo "soak: venice sim run $name --quick --seed $seed fails" >&2
                    return 1
                }
            done
            if [[ ${hashes[1]} != "${hashes[2]}" ]]; then
                echo "soak: venice sim run $name --quick --seed $seed differs with --threads 1 and 2" >&2
                return 1
            fi
        done
    done
}

survival() { # survival MINUTES: donors that die, stall and come back in virtual time, on fresh seeds
    local until=$((SECONDS + $1 * 60)) seed
    while ((SECONDS < until)); do
        seed="$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')"
        VENICE_SURVIVAL_SEED="$seed" VENICE_SURVIVAL_SEEDS=10000 \
            cargo test --release --locked -p venice-memory --lib survival::faults_never_corrupt_pages </dev/null || return 1
    done
}

properties() { # a sequence that fails is printed, and kept for the next run in tests/proptest-regressions
    PROPTEST_CASES="${PROPTEST_CASES:-10000}" timeout --kill-after=60s 60m \
        cargo test --locked -p venice-wire -p venice-fabric -p venice-rack </dev/null
}

ports() { # ports MINUTES: racks of processes on fresh seeds, over each port in turn
    local until=$((SECONDS + $1 * 60)) ports=(shm ring) port seed
    # the others are half as much
    [[ $(id -u) == 0 ]] && ports+=(udp udp "udp --topology mesh:2x2x2" "udp --topology router")
    cargo build --release --locked -p venice-e2e --bin venice-rack-test
    while ((SECONDS < until)); do
        for port in "${ports[@]}"; do
            seed="$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')"
            # shellcheck disable=SC2086 # a port and its wiring
            target/release/venice-rack-test run --port $port --seed "$seed" --seeds 10 || return 1
        done
    done
}

monitors() { # monitors MINUTES: whoever of a rack's control plane dies, nothing is lent wrongly
    local seed
    seed="$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')"
    VENICE_LOOP_SEED="$seed" VENICE_LOOP_SECONDS="$(($1 * 60))" \
        cargo test --locked -p venice --test alone_whoever_dies -- --nocapture </dev/null
}

wants() { [[ $what == all || $what == "$1" ]]; }

if wants integrity; then
    integrity "$minutes"
fi
if [[ $what == experiments ]]; then
    cargo test --locked -p venice-lab --test it shipped::long_variants -- --ignored </dev/null
fi
round=0
end=$((SECONDS + seed_minutes * 60))
while [[ $what != integrity ]] && ((SECONDS < end)); do
    round=$((round + 1))
    left=$(((end - SECONDS + 59) / 60))
    echo "== soak: round $round, $left minutes left"
    if wants sim; then
        simulated rack "$([[ $what == sim ]] && echo "$left" || echo $((left < 5 ? left : 5)))"
    fi
    if wants control; then
        simulated control "$([[ $what == control ]] && echo "$left" || echo $((left < 5 ? left : 5)))"
    fi
    if wants experiments; then
        experiments "$([[ $what == experiments ]] && echo "$left" || echo $((left < 5 ? left : 5)))"
    fi
    if wants survival; then
        survival "$([[ $what == survival ]] && echo "$left" || echo $((left < 5 ? left : 5)))"
    fi
    if wants properties; then
        properties
    fi
    if wants ports; then
        ports "$([[ $what == ports ]] && echo "$left" || echo $((left < 5 ? left : 5)))"
    fi
    if wants monitors; then
        monitors "$([[ $what == monitors ]] && echo "$left" || echo $((left < 5 ? left : 5)))"
    fi
    if wants programs; then
        timeout --kill-after=60s 30m cargo test --release --locked -p venice-e2e -- \
            programs:: --test-threads=1 </dev/null
    fi
done
echo "soak: $round rounds of fresh seeds without a failure"
