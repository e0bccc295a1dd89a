"""A pool of processes that work on data of their parent (fork) or of their own."""

import hashlib
import multiprocessing
import sys

DATA: list[str] = []


def make(count: int) -> list[str]:
    return [hashlib.md5(b"%d" % i).hexdigest() for i in range(count)]


def digest(lines: list[str]) -> str:
    return hashlib.md5("".join(lines).encode()).hexdigest()


def work(task: int) -> tuple[int, str, int]:
    part = (DATA or make(150_000))[task % 4 :: 4]
    own = sorted(part, reverse=True) if task % 2 else [line.upper() for line in part]
    return task, digest(own), len(own)


if __name__ == "__main__":
    how = sys.argv[1]
    if how == "fork":
        DATA = make(250_000)
    with multiprocessing.get_context(how).Pool(4) as pool:
        for row in sorted(pool.imap_unordered(work, range(8))):
            print(*row)
    print(digest(DATA))
