"""The victim store of examples/python in front of a real memcached."""

import os
import socket
import subprocess
import sys
import time
import unittest
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples/python/memcached_victim.py"
VALUES = 600
LENGTH = 50_000
PATIENCE_S = 60


def value_of(key: int, generation: int = 0) -> bytes:
    return (b"%d/%d " % (key, generation)).ljust(LENGTH + key, b"v")


class Client:
    """A client of memcached's text protocol."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.file = self.socket.makefile("rwb")

    def send(self, text: bytes) -> bytes:
        self.file.write(text)
        self.file.flush()
        return self.file.readline()

    def set(self, key: int, value: bytes) -> bytes:
        return self.send(b"set key%d 5 0 %d\r\n%b\r\n" % (key, len(value), value))

    def get(self, key: int) -> bytes | None:
        line = self.send(b"get key%d\r\n" % key)
        if line == b"END\r\n":
            return None
        name, flags, length = line.split()[1:4]
        assert (name, flags) == (b"key%d" % key, b"5"), line
        value = self.file.read(int(length) + 2)[:-2]
        assert self.file.readline() == b"END\r\n"
        return value

    def stats(self) -> dict[str, int]:
        line, found = self.send(b"stats\r\n"), {}
        while line != b"END\r\n":
            _, name, count = line.split()[:3]
            found[name.decode()] = int(count) if count.isdigit() else 0
            line = self.file.readline()
        return found

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Victim(unittest.TestCase):
    def setUp(self) -> None:
        near = free_port()
        root = ["-u", "root"] if os.geteuid() == 0 else []
        command = ["memcached", "-m", "8", "-l", "127.0.0.1", "-p", str(near), *root]
        self.start(command)
        self.near = self.connect(near)
        proxy = self.start(
            [sys.executable, str(EXAMPLE), "--listen", "0", "--memcached", str(near)]
            + ["--size", "64MiB"],
            stdout=subprocess.PIPE,
        )
        line = proxy.stdout.readline()
        self.assertIn(b"listening at", line)
        self.proxy = self.connect(int(line.split(b":")[-1]))

    def start(self, command: list[str], **how) -> subprocess.Popen:
        process = subprocess.Popen(command, **how)

        def stop() -> None:
            process.terminate()
            process.wait(PATIENCE_S)
            if process.stdout:
                process.stdout.close()

        self.addCleanup(stop)
        return process

    def connect(self, port: int) -> Client:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                client = Client(port)
                self.addCleanup(client.close)
                return client
            except ConnectionError:
                self.assertLess(time.monotonic(), deadline, "in vain")
                time.sleep(0.05)

    def test_evicted_objects_are_found(self) -> None:
        for key in range(VALUES):
            self.assertEqual(self.proxy.set(key, value_of(key)), b"STORED\r\n")
        alone = sum(self.near.get(key) is not None for key in range(VALUES))
        self.assertLess(alone, VALUES // 2, "memcached has no room for them")
        for key in range(VALUES):
            self.assertEqual(self.proxy.get(key), value_of(key), f"key{key}")
        stats = self.proxy.stats()
        self.assertGreater(stats["victim_hits"], VALUES // 2)
        self.assertEqual(stats["misses"], 0)
        # The new value is found, wherever the old one was; a deleted one is not found.
        for key in range(0, VALUES, 7):
            self.proxy.set(key, value_of(key, 1))
        self.assertEqual(self.proxy.send(b"delete key8\r\n"), b"DELETED\r\n")
        for key in range(VALUES):
            expected = None if key == 8 else value_of(key, 1 if key % 7 == 0 else 0)
            self.assertEqual(self.proxy.get(key), expected, f"key{key}")


if __name__ == "__main__":
    unittest.main()
