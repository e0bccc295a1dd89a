#!/usr/bin/env bash
# Records the traces that come with Venice: pagerank.trace and berkeleydb.trace. Needs gcc, valgrind, Berkeley
# DB (libdb5.3-dev) and `venice` with `venice-lab` in PATH; some minutes.
#
# PageRank: 32 768 vertices, 191 037 edges (5.83 a vertex, as the paper's 1 488 712 and 8 678 566), R-MAT,
# 3.4 MiB of data. The first 125 000 accesses of the second iteration: three quarters of it.
# Berkeley DB 5.3: a B-tree of 60 000 records of 256 bytes in pages of 4 KiB, filled in the order of keys, 19 MiB
# of data. 1000 transactions of four gets and a put of random keys.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
work="$(mktemp -d)"
trap 'rm -r "$work"' EXIT
gcc -O2 -Wall -o "$work/pagerank" "$here/pagerank.c"
gcc -O2 -Wall -o "$work/berkeleydb" "$here/berkeleydb.c" -ldb
"$work/berkeleydb" "$work/file" 60000 256 0

record() { # record FILE ORIGIN FLAGS... -- PROGRAM
    venice sim record --out "$here/$1" --origin "$2" --marked --filter 32KiB "${@:3}"
}
record pagerank.trace "pagerank.c 15 5.83 2, the last iteration" --most 125000 -- "$work/pagerank" 15 5.83 2
record berkeleydb.trace "berkeleydb.c, 60000 records of 256 bytes, 1000 transactions" -- \
    "$work/berkeleydb" "$work/file" 60000 256 1000
