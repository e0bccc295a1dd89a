#!/usr/bin/env bash
# scripts/wheel.sh [FOLDER]: the Python package as a wheel, into FOLDER (target/wheels).
#
# It serves every Python from 3.11 on. maturin builds it: the one in PATH, else one that is
# installed into a virtual environment of its own, target/python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$HOME/.cargo/bin:$PATH:$PWD/target/python/bin"

if ! command -v maturin >/dev/null 2>&1; then
    if ! python3 -m venv target/python || ! target/python/bin/pip install --quiet maturin; then
        echo "wheel: maturin cannot be installed into target/python: install python3-venv, or maturin" >&2
        exit 1
    fi
fi
maturin build --quiet --profile "${PROFILE:-release}" --locked \
    --manifest-path crates/venice-py/Cargo.toml --compatibility linux --out "${1:-target/wheels}"
