#!/usr/bin/env bash
# scripts/wheel.sh [FOLDER]: the Python package as a wheel, into FOLDER (target/wheels).
#
# It serves every Python from 3.11 on. maturin builds it: that of `scripts/setup.sh test`, which
# keeps it in target/python, or the one in PATH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$HOME/.cargo/bin:$PATH:$PWD/target/python/bin"

if ! command -v maturin >/dev/null 2>&1; then
    echo "wheel: no maturin here: run scripts/setup.sh test, or pip install maturin" >&2
    exit 1
fi
maturin --quiet build --release --locked --manifest-path crates/venice-py/Cargo.toml \
    --interpreter /usr/bin/python3 --compatibility linux --out "${1:-target/wheels}"
