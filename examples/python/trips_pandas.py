"""A pandas job over columns in borrowed memory: a table of trips, of which `--local` is resident.

    venice up
    python3 trips_pandas.py --rows 20000000 --local 64MiB --check
"""

import argparse
import time

import numpy as np
import pandas as pd
import venice

COLUMNS = {"vendor": np.int8, "minutes": np.float32, "km": np.float32, "fare": np.float64}
#: Rows made at a time.
STRIDE = 1 << 18


def fill(columns: dict) -> None:
    """Trips: longer ones cost more, and vendors have their prices."""
    random = np.random.default_rng(7)
    rows = len(columns["fare"])
    for start in range(0, rows, STRIDE):
        part = slice(start, min(start + STRIDE, rows))
        count = part.stop - part.start
        columns["vendor"][part] = random.integers(0, 8, count)
        columns["km"][part] = random.gamma(2.0, 3.0, count)
        columns["minutes"][part] = columns["km"][part] * random.uniform(1.5, 6.0, count)
        price = 2.5 + 0.2 * columns["vendor"][part]
        columns["fare"][part] = np.round(price + 1.7 * columns["km"][part], 2)


def report(table: pd.DataFrame) -> pd.DataFrame:
    """For each vendor: trips, mean fare, and the fare for a km of its longer trips."""
    by_vendor = table.groupby("vendor", sort=True)
    longer = table[table["km"] > 10].groupby("vendor")
    return pd.DataFrame(
        {
            "trips": by_vendor.size(),
            "mean fare": by_vendor["fare"].mean(),
            "fare per km": longer["fare"].sum() / longer["km"].sum(),
        }
    )


def table_of(columns: dict) -> pd.DataFrame:
    return pd.DataFrame(columns, copy=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--local", default="16MiB", help="what may be resident")
    parser.add_argument("--port", choices=["shm", "udp", "verbs"])
    parser.add_argument("--check", action="store_true", help="compare with a table in local memory")
    args = parser.parse_args()

    size = args.rows * sum(np.dtype(kind).itemsize for kind in COLUMNS.values()) + (1 << 20)
    with venice.connect() as rack:
        with rack.paged(size, local=args.local, port=args.port, purpose="trips") as paged:
            columns = {name: paged.array(args.rows, kind) for name, kind in COLUMNS.items()}
            began = time.monotonic()
            fill(columns)
            table = table_of(columns)
            if not np.shares_memory(table["fare"].to_numpy(), columns["fare"]):
                raise SystemExit("pandas has copied the columns")
            done = report(table)
            print(
                f"{args.rows} rows in {paged.mapped_bytes >> 20} MiB, "
                f"{paged.resident_bytes >> 20} MiB of it resident: {time.monotonic() - began:.1f} s"
            )
    print(done.to_string())
    if args.check:
        local = {name: np.zeros(args.rows, kind) for name, kind in COLUMNS.items()}
        fill(local)
        pd.testing.assert_frame_equal(done, report(table_of(local)), check_exact=True)
        print("the same report as from local memory")


if __name__ == "__main__":
    main()
