"""TCP incast: the goodput of one client by servers and by the switch's buffer, simulated.

    python3 examples/python/incast.py [ROUNDS]
"""

import sys

from venice import sim


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    experiment = (
        sim.experiment("incast-1g")
        .set({"rto": "200ms", "application.iterations": rounds})
        .sweep("servers", [1, 2, 4, 8, 16])
        .sweep("topology.tor.switch.buffer.bytes", ["4KiB", "16KiB", "64KiB"])
    )
    results = experiment.run("client=pthread")
    print(f"{'servers':>7} {'buffer':>7} {'Mb/s':>7} {'drops':>7}")
    for row in results.rows(["goodput", "drops.switch"]):
        print(f"{row['servers']:7} {row['bytes']:>7} {row['goodput']:7.1f} {row['drops.switch']:7.0f}")


if __name__ == "__main__":
    main()
