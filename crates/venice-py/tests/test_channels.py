"""Channels between programs, without a rack."""

import os
import select
import signal
import tempfile
import threading
import time
import unittest

import venice

MIB = 1 << 20


class Channels(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.key = venice.new_key()

    def address(self, name: str = "talk") -> str:
        return f"shm:{self.folder}/{name}"

    def pair(self, address: str, kind: str, **options) -> tuple[venice.Channel, venice.Channel]:
        with venice.listen(address, kind, **options) as listener:
            ours: list[venice.Channel] = []
            at = listener.address
            connecting = threading.Thread(
                target=lambda: ours.append(venice.connect_channel(at, kind, **options))
            )
            connecting.start()
            theirs = listener.accept(20)
            connecting.join()
        for channel in (ours[0], theirs):
            channel.settimeout(20)
        return ours[0], theirs

    def test_messages_go_both_ways(self) -> None:
        for address, options in [(self.address(), {}), ("udp:127.0.0.1:0", {"key": self.key})]:
            ours, theirs = self.pair(address, "messages", **options)
            with ours, theirs:
                for length in (1, 5000, 200_000):
                    message = os.urandom(length)
                    ours.send(message)
                    self.assertEqual(theirs.recv(), message)
                    theirs.send(memoryview(message))
                    buffer = bytearray(length)
                    self.assertEqual(ours.recv_into(buffer), length)
                    self.assertEqual(buffer, message)
                ours.shutdown()
                self.assertIsNone(theirs.recv())

    def test_streams_are_complete(self) -> None:
        data = os.urandom(3 * MIB)
        for kind in ("stream", "adaptive"):
            ours, theirs = self.pair(self.address(kind), kind)

            def write() -> None:
                ours.write_all(data)
                ours.shutdown()

            writing = threading.Thread(target=write)
            writing.start()
            read = b"".join(iter(lambda: theirs.read(1 << 16), b""))
            writing.join()
            self.assertTrue(read == data, kind)
            ours.close()
            self.assertTrue(ours.closed)
            with self.assertRaises(venice.Closed):
                ours.write(b"x")

    def test_accept_leaves_others_running(self) -> None:
        with venice.listen(self.address()) as listener:
            accepted: list[venice.Channel] = []
            accepting = threading.Thread(target=lambda: accepted.append(listener.accept(20)))
            accepting.start()
            # Each would wait for a share of the accept's seconds.
            for _ in range(300):
                self.assertGreaterEqual(listener.fileno(), 0)
                self.assertEqual(listener.address, self.address())
                listener.arm()
                with self.assertRaises(venice.WouldBlock):
                    listener.accept(0)
            self.assertEqual(accepted, [])
            with venice.connect_channel(self.address()) as ours:
                accepting.join()
                accepted[0].send(b"hello")
                self.assertEqual(ours.recv(), b"hello")

    def test_descriptor_wakes_select(self) -> None:
        ours, theirs = self.pair(self.address(), "messages")
        theirs.settimeout(0)
        with self.assertRaises(venice.WouldBlock):
            theirs.recv()
        sending = threading.Timer(0.1, lambda: ours.send(b"late"))
        sending.start()
        while True:
            try:
                self.assertEqual(theirs.recv(), b"late")
                break
            except BlockingIOError:
                if theirs.arm():
                    self.assertTrue(select.select([theirs], [], [], 20)[0])
        sending.join()

    def test_errors_name_remedy(self) -> None:
        with self.assertRaisesRegex(venice.Unreachable, "start the listening one"):
            venice.connect_channel(self.address("nowhere"))
        with self.assertRaisesRegex(venice.Invalid, "same key"):
            venice.listen("udp:127.0.0.1:0")
        with self.assertRaisesRegex(venice.Invalid, "udp:HOST:PORT"):
            venice.listen("tcp:here")
        with self.assertRaisesRegex(venice.Invalid, "messages, stream or adaptive"):
            venice.listen(self.address(), "letters")  # type: ignore[arg-type]
        for buffer in (1, "1GiB", "1TiB"):
            with self.assertRaisesRegex(venice.Invalid, "4 KiB to 16 MiB"):
                venice.listen(self.address(), buffer=buffer)
        with self.assertRaises(venice.Invalid):
            venice.lend(self.address(), 0)
        ours, _theirs = self.pair(self.address(), "messages")
        ours.settimeout(0.05)
        begin = time.monotonic()
        with self.assertRaises(TimeoutError):
            ours.recv()
        self.assertLess(time.monotonic() - begin, 10)

    def test_killed_peer_is_reported(self) -> None:
        with venice.listen(self.address()) as listener:
            listener_address = listener.address
            child = os.fork()
            if child == 0:
                try:
                    # What the parent made is closed here; what the child makes works.
                    assert listener.closed
                    with venice.connect_channel(listener_address) as channel:
                        channel.send(b"ready")
                        time.sleep(60)
                finally:
                    os._exit(1)
            theirs = listener.accept(20)
            theirs.settimeout(20)
            self.assertEqual(theirs.recv(), b"ready")
            os.kill(child, signal.SIGKILL)
            with self.assertRaisesRegex(venice.Disconnected, "lost"):
                theirs.recv()
            os.waitpid(child, 0)

    def test_void_handles_say_why(self) -> None:
        ours, theirs = self.pair(self.address(), "messages")
        listener = venice.listen(self.address("more"))
        lent = venice.lend(self.address("lent"), 1)
        calls = [lambda: ours.send(b"x"), lambda: listener.accept(0), lambda: lent.read(0, 1)]

        def words(call) -> str:
            with self.assertRaises(venice.Closed) as void:
                call()
            return str(void.exception)

        child = os.fork()
        if child == 0:
            status = 1
            try:
                said = "it belongs to the parent process: make a new one in the child"
                status = 0 if [words(call) for call in calls] == [said] * 3 else 2
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        for handle in (ours, theirs, listener, lent):
            handle.close()
        self.assertEqual([words(call) for call in calls], ["already closed"] * 3)

    def test_regions_are_shared(self) -> None:
        for address, options in [(self.address(), {}), ("udp:127.0.0.1:0", {"key": self.key})]:
            with venice.lend(address, "1MiB", **options) as lent:
                with venice.connect_region(lent.address, "16MiB", **options) as remote:
                    self.assertEqual((len(lent), len(remote)), (16 * MIB, 16 * MIB))
                    data = os.urandom(100_000)
                    remote.write(5000, data)
                    self.assertTrue(lent.read(5000, len(data)) == data)
                    lent.write(64, b"far away")
                    self.assertEqual(remote.read(64, 8), b"far away")
                    self.assertEqual(remote.fetch_add(8, 3), 0)
                    self.assertEqual(remote.compare_swap(8, 3, 9), 3)
                    self.assertEqual(lent.fetch_add(8, 1), 9)
                    self.assertEqual(lent.compare_swap(8, 10, -1), 10)
                    self.assertEqual(remote.fetch_add(8, -1), (1 << 64) - 1)
                    with self.assertRaises(IndexError):
                        remote.read(16 * MIB, 1)
                    with self.assertRaises(venice.Unaligned):
                        remote.fetch_add(12, 1)


if __name__ == "__main__":
    unittest.main()
