"""PageRank over a graph that does not fit: edges and ranks lie in borrowed memory, and only
`--local` of them is resident.

    venice up
    python3 pagerank.py --vertices 1500000 --edges 8700000 --local 16MiB --check

With `--check` the same is computed on arrays in local memory; both must agree to the last bit.
"""

import argparse
import time

import numpy as np
import venice

DAMPING = 0.85
#: Edges handled at a time: what numpy needs in between stays small.
STRIDE = 1 << 18


def edges_of(vertices: int, edges: int, stride: int, seed: int = 1):
    """A graph with a few vertices that many point to, in pieces: sources and targets."""
    random = np.random.default_rng(seed)
    for start in range(0, edges, stride):
        count = min(stride, edges - start)
        targets = (vertices * random.random(count) ** 3).astype(np.int32)
        yield random.integers(0, vertices, count, dtype=np.int32), targets


def build(empty, vertices: int, edges: int):
    """The graph by target: the sources of all edges into vertex v are
    `sources[first[v]:first[v + 1]]`. And out-degrees."""
    first = empty(vertices + 1, np.int64)
    degree = empty(vertices, np.int32)
    for sources_part, targets in edges_of(vertices, edges, STRIDE):
        first[1:] += np.bincount(targets, minlength=vertices)
        degree += np.bincount(sources_part, minlength=vertices).astype(np.int32)
    np.cumsum(first, out=first)
    sources = empty(edges, np.int32)
    filled = first[:-1].copy()
    for sources_part, targets in edges_of(vertices, edges, STRIDE):
        order = np.argsort(targets, kind="stable")
        targets = targets[order]
        runs = np.flatnonzero(np.diff(targets, prepend=-1))
        within = np.arange(len(targets)) - np.repeat(runs, np.diff(runs, append=len(targets)))
        sources[filled[targets] + within] = sources_part[order]
        filled += np.bincount(targets, minlength=vertices)
    return first, sources, degree


def pagerank(empty, graph, rounds: int):
    first, sources, degree = graph
    vertices = len(degree)
    rank, share, following = (empty(vertices, np.float64) for _ in range(3))
    rank[:] = 1 / vertices
    for _ in range(rounds):
        np.divide(rank, degree, out=share, where=degree > 0)
        share[degree == 0] = 0
        lost = rank[degree == 0].sum()
        start = 0
        while start < vertices:
            # As many vertices as bring about STRIDE edges, one at least.
            end = int(np.searchsorted(first, first[start] + STRIDE, side="right")) - 1
            end = min(max(end, start + 1), vertices)
            flow = np.zeros(end - start)
            edges = share[sources[first[start] : first[end]]]
            sums = np.concatenate(([0.0], np.cumsum(edges)))
            flow = sums[first[start + 1 : end + 1] - first[start]] - sums[first[start:end] - first[start]]
            following[start:end] = (1 - DAMPING) / vertices + DAMPING * (flow + lost / vertices)
            start = end
        rank, following = following, rank
    return rank


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vertices", type=int, default=1_500_000)
    parser.add_argument("--edges", type=int, default=8_700_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--local", default="16MiB", help="what may be resident")
    parser.add_argument("--port", choices=["shm", "udp", "verbs"])
    parser.add_argument("--check", action="store_true", help="compare with arrays in local memory")
    args = parser.parse_args()

    size = args.edges * 4 + args.vertices * (8 + 4 + 3 * 8) + (1 << 20)
    with venice.connect() as rack:
        with rack.paged(size, local=args.local, port=args.port, purpose="pagerank") as paged:
            began = time.monotonic()
            graph = build(paged.array, args.vertices, args.edges)
            rank = pagerank(paged.array, graph, args.rounds)
            took = time.monotonic() - began
            print(
                f"{args.vertices} vertices, {args.edges} edges in {paged.mapped_bytes >> 20} MiB, "
                f"{paged.resident_bytes >> 20} MiB of it resident: {took:.1f} s"
            )
    best = np.argsort(-rank)[:3]
    print("most linked to:", ", ".join(f"{v} ({rank[v]:.2e})" for v in best))
    print(f"the sum of all ranks: {rank.sum():.9f}")
    if args.check:
        began = time.monotonic()
        same = pagerank(np.zeros, build(np.zeros, args.vertices, args.edges), args.rounds)
        print(f"all local: {time.monotonic() - began:.1f} s")
        if not np.array_equal(rank, same):
            raise SystemExit("the ranks differ")
        print("the same ranks, to the last bit")


if __name__ == "__main__":
    main()
