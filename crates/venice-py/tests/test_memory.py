"""Borrowed memory and object caches, on the rack that VENICE_RUN_DIR names."""

import asyncio
import ctypes
import os
import pwd
import socket
import threading
import traceback
import unittest

import venice

SLAB = 16 << 20


class Sizes(unittest.TestCase):
    def test_sizes_are_parsed(self) -> None:
        for text, size in [("64MiB", 64 << 20), ("1.5 GiB", 3 << 29), ("7", 7), (12, 12)]:
            self.assertEqual(venice.parse_size(text), size)
        for text in ["", "MiB", "12 parsecs", "-1", -1]:
            with self.assertRaises(venice.Invalid):
                venice.parse_size(text)


class Placement(unittest.TestCase):
    def test_placement_is_validated(self) -> None:
        rack = venice.connect()
        for placement in ("nearest", "spread", "pack", None):
            with rack.get_memory("16MiB", placement=placement, purpose="a test") as memory:
                memory.write(0, b"far")
                self.assertEqual(memory.read(0, 3), b"far")
        with self.assertRaisesRegex(venice.Invalid, "nearest, spread or pack"):
            rack.get_memory("16MiB", placement="widely")  # type: ignore[arg-type]
        with self.assertRaises(venice.Invalid):
            rack.object_cache("16MiB", placement="widely")  # type: ignore[arg-type]


class Reclaim(unittest.TestCase):
    def test_reclaim_to_is_validated(self) -> None:
        rack = venice.connect()
        for places in ("donors", "local,donors", "donors,disk:/var/tmp"):
            with rack.get_memory("16MiB", reclaim_to=places, purpose="a test") as memory:
                memory.write(0, b"far")
                self.assertEqual(memory.read(0, 3), b"far")
        with self.assertRaisesRegex(venice.Invalid, "expected donors, local, disk"):
            rack.get_memory("16MiB", reclaim_to="donors,tape")
        with self.assertRaisesRegex(venice.Invalid, "is not a directory"):
            rack.object_cache("16MiB", reclaim_to="disk:/no/such")
        with self.assertRaises(venice.Invalid):
            rack.get_memory("16MiB", reclaim_to="")


class Devices(unittest.TestCase):
    """Devices on a rack with storage, and an accelerator that has the service echo."""

    def setUp(self) -> None:
        self.rack = venice.connect()

    def test_missing_devices_raise_no_room(self) -> None:
        with self.assertRaises(venice.NoRoom):
            self.rack.get_device("accelerator:no-such")
        with self.assertRaises(venice.NoRoom):
            self.rack.get_device("nic", purpose="a test")
        with self.assertRaises(venice.Invalid):
            self.rack.get_devices()
        with self.assertRaises(venice.Invalid):
            self.rack.get_device("storage=0")
        with self.assertRaises(venice.Invalid):
            self.rack.get_device("memory=1GiB")
        with self.assertRaises(venice.NoRoom):
            self.rack.get_memory("16MiB", devices=["accelerator:no-such"])
        with self.assertRaisesRegex(venice.NoRoom, "waiting does not help"):
            self.rack.get_device("accelerator:no-such", wait_s=60)
        with self.assertRaises(venice.Invalid):
            self.rack.get_device("nic", wait_s=1, priority=256)

    def test_storage_is_held_until_close(self) -> None:
        with self.rack.get_device("storage=1MiB", purpose="a test") as storage:
            self.assertEqual((storage.kind, storage.len_bytes), ("storage", 1 << 20))
            self.assertIn(storage.node, repr(storage))
            storage.check()
            self.assertIsNone(storage.leaving)
            self.assertIsNone(storage.service)
            with self.assertRaises(venice.Invalid):
                storage.open_service()
        self.assertTrue(storage.closed)
        with self.assertRaises(venice.Closed):
            storage.check()

    def test_service_answers_until_close(self) -> None:
        with self.rack.get_device("accelerator:echo") as device:
            self.assertEqual(device.service, "echo")
            for timeout in (0, -1, float("nan")):
                with self.assertRaises(venice.Invalid):
                    device.open_service(timeout)
            with device.open_service(timeout=30) as service:
                self.assertEqual(service.call(1, b"far away"), (0, b"far away"))
                self.assertNotEqual(service.call(999)[0], 0)
                with self.assertRaises(venice.Invalid):
                    service.call(1, bytes(64 << 20))
                device.close()
                with self.assertRaises(venice.Disconnected):
                    while True:
                        service.call(1, b"until the grant has ended")
            with self.assertRaises(venice.Closed):
                service.call(1)


    def claims_as_nobody(self, number: str, successor: int) -> None:
        """Claims a device in a forked child, as another user that reaches root's rack: with
        SECBIT_NO_SETUID_FIXUP (4) a change of user keeps the capabilities."""
        ctypes.CDLL(None).prctl(28, 4, 0, 0, 0)
        os.setuid(pwd.getpwnam("nobody").pw_uid)
        claimed = venice.connect().claim(number, wait_s=30)
        assert claimed is not None
        with claimed:
            self.assertTrue(claimed.is_whole)
            [grant] = claimed.grants
            self.assertEqual((grant.kind, grant.grant), ("accelerator", successor))
            self.assertEqual((grant.node, grant.service), ("node1", "echo"))
            self.assertIn("echo", grant.capabilities)
            with claimed.open_service(0, timeout=30) as service:
                self.assertEqual(service.call(1, b"far away"), (0, b"far away"))
            with self.assertRaises(venice.Invalid):
                claimed.open_service(1)
        with self.assertRaises(venice.Closed):
            claimed.open_service(0)

    @unittest.skipIf(os.geteuid() != 0, "needs root")
    def test_device_changes_hands(self) -> None:
        with self.rack.get_device("accelerator:echo") as device:
            with self.assertRaisesRegex(venice.Invalid, "USER@NODE"):
                self.rack.transfer([device.grant], "nobody")
            with self.assertRaisesRegex(venice.Invalid, "no transfer"):
                self.rack.claim("nobody")
            self.assertIsNone(self.rack.claim())
            to = f"nobody@{socket.gethostname()}"
            with self.assertRaisesRegex(venice.Error, "up to 600 s"):
                self.rack.transfer([device.grant], to, claim_within_s=3600)
            made = self.rack.transfer([device.grant], to)
            [row] = made.grants
            self.assertEqual(row.grant, device.grant)
            self.assertIn(row.state, ["transferred", "pending"])
            child = os.fork()
            if child == 0:
                try:
                    self.claims_as_nobody(made.number, row.successor)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)


class Memory(unittest.TestCase):
    def setUp(self) -> None:
        self.rack = venice.connect()
        self.memory = self.rack.get_memory("20MiB", purpose="a test")
        self.addCleanup(self.memory.close)

    def test_bytes_roundtrip(self) -> None:
        self.assertEqual(len(self.memory), 2 * SLAB)
        self.memory.write(SLAB - 3, b"far away")
        self.assertEqual(self.memory.read(SLAB - 3, 8), b"far away")
        self.assertEqual(self.memory.read(0, 4), bytes(4))
        into = bytearray(8)
        self.memory.read_into(SLAB - 3, into)
        self.assertEqual(into, b"far away")
        self.memory[10:14] = memoryview(b"abcd")
        self.assertEqual(self.memory[9:15], b"\0abcd\0")
        self.memory.write(0, b"")
        self.assertEqual(self.memory.read(0, 0), b"")
        with self.assertRaises(ValueError):
            self.memory[0:4] = b"too long"
        with self.assertRaises(TypeError):
            self.memory.read_into(0, b"read only")

    def test_copies_are_on_different_nodes(self) -> None:
        self.assertEqual(self.memory.copies.copies, 2, "the rack has room")
        self.assertEqual((self.memory.copies.slabs, self.memory.copies.short_slabs), (2, 0))
        free = self.rack.free_bytes()
        for copies in [1, 2, 3]:
            with self.rack.object_cache("16MiB", copies=copies) as cache:
                self.assertEqual(self.rack.free_bytes(), free - copies * SLAB)
                self.assertEqual(cache.copies.copies, copies)
        with self.assertRaises(venice.Invalid):
            self.rack.get_memory(1, copies=4)
        with self.assertRaises(venice.NoRoom):
            self.rack.get_memory(1, copies=2, donors=["node1"])

    def test_outstanding_accesses_keep_order(self) -> None:
        async def there_and_back() -> None:
            # More than may be outstanding; each page is written twice.
            pages = [bytes([page % 251]) * 4096 for page in range(600)]
            writes = [self.memory.write_async(page * 4096, b"old" * 100) for page in range(600)]
            writes += [self.memory.write_async(page * 4096, b) for page, b in enumerate(pages)]
            await asyncio.gather(*writes)
            reads = [self.memory.read_async(page * 4096, 4096) for page in range(600)]
            self.assertEqual(await asyncio.gather(*reads), pages)

        asyncio.run(there_and_back())
        future = self.memory.submit_write(5, b"later")
        self.assertEqual(self.memory.submit_read(5, 5).result(), b"later")
        self.assertIsNone(future.result())
        self.memory.flush()

    def test_awaited_access_can_be_cancelled(self) -> None:
        async def give_up() -> None:
            tasks = [asyncio.ensure_future(self.memory.read_async(0, SLAB)) for _ in range(4)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(give_up())
        self.memory.flush()

    def test_atomics_count_across_threads(self) -> None:
        def count() -> None:
            for _ in range(200):
                self.memory.fetch_add(4096, 1)

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.memory.compare_swap(4096, 800, 5), 800)
        self.assertEqual(self.memory.fetch_add(4096, -6), 5)
        self.assertEqual(self.memory.fetch_add(4096, 0), (1 << 64) - 1)
        with self.assertRaises(venice.Unaligned):
            self.memory.fetch_add(4, 1)

    def test_errors_have_type_and_reason(self) -> None:
        with self.assertRaises(IndexError) as beyond:
            self.memory.read(2 * SLAB - 1, 2)
        self.assertIsInstance(beyond.exception, venice.OutOfRange)
        with self.assertRaises(venice.OutOfRange):
            self.memory.read(0, 1 << 50)
        with self.assertRaises(venice.OutOfRange):
            self.memory.submit_write(2 * SLAB, b"x")
        with self.assertRaisesRegex(venice.NoRoom, "node1"):
            self.rack.get_memory("1TiB")
        with self.assertRaisesRegex(venice.Refused, "node77"):
            self.rack.get_memory(1, donors=["node77"])
        with self.assertRaisesRegex(venice.Invalid, "pigeon"):
            self.rack.get_memory(1, port="pigeon")
        with self.assertRaisesRegex(venice.Unreachable, "127.0.0.1:1"):
            venice.connect("127.0.0.1:1")
        with self.assertRaisesRegex(venice.Invalid, "nowhere"):
            venice.connect("nowhere")
        for kind, base in [
            (venice.NoRoom, MemoryError),
            (venice.Invalid, ValueError),
            (venice.Unreachable, ConnectionError),
            (venice.Refused, OSError),
            (venice.DonorLost, OSError),
            (venice.DeviceLost, OSError),
        ]:
            self.assertTrue(issubclass(kind, base))
        lost = venice.DonorLost("lost", "node1", 5, 7)
        self.assertEqual((str(lost), lost.node, lost.offset, lost.len_bytes), ("lost", "node1", 5, 7))
        for kind in [venice.NoRoom, venice.Refused, venice.Unreachable, venice.DonorLost]:
            self.assertTrue(issubclass(kind, venice.Error))

    def test_invalid_numbers_raise_package_errors(self) -> None:
        for size in [-1, 1 << 63, 1 << 64, 10**30, "99999999TiB", "0.5"]:
            with self.assertRaises(venice.Invalid):
                self.rack.get_memory(size)
        for size in [None, 1.5, b"16MiB"]:
            with self.assertRaisesRegex(TypeError, "64MiB"):
                self.rack.get_memory(size)  # type: ignore[arg-type]
        for wrong in [
            {"copies": 0},
            {"copies": -1},
            {"copies": 1 << 40},
            {"most_under_way": -1},
            {"bandwidth_bps": -1},
            {"priority": -1},
            {"priority": 1 << 70},
            {"wait_s": -1},
            {"wait_s": float("nan")},
        ]:
            with self.subTest(wrong), self.assertRaises(venice.Invalid):
                self.rack.get_memory(1, **wrong)  # type: ignore[arg-type]
        for access in [
            lambda: self.memory.read(-1, 1),
            lambda: self.memory.read(0, -1),
            lambda: self.memory.read(1 << 64, 1),
            lambda: self.memory.write(-1, b"x"),
            lambda: self.memory.read_into(-1, bytearray(1)),
            lambda: self.memory.submit_read(-1, 1),
            lambda: self.memory.submit_write(-1, b"x"),
            lambda: self.memory.fetch_add(-8, 1),
            lambda: self.memory.compare_swap(1 << 70, 0, 1),
        ]:
            with self.assertRaises(venice.OutOfRange):
                access()
        self.assertEqual(self.memory.compare_swap(64, 0, -1), 0)
        self.assertEqual(self.memory.compare_swap(64, -1, 3), (1 << 64) - 1)

    def test_closed_memory_is_given_back(self) -> None:
        free = self.rack.free_bytes()
        with self.rack.get_memory("16MiB", copies=1) as memory:
            self.assertEqual(self.rack.free_bytes(), free - SLAB)
            futures = [memory.submit_write(0, bytes(1 << 20)) for _ in range(20)]
        self.assertEqual(self.rack.free_bytes(), free)
        self.assertTrue(all(future.done() for future in futures))
        self.assertTrue(memory.closed)
        memory.close()
        with self.assertRaises(venice.Closed):
            memory.read(0, 1)

    def test_forked_child_has_no_handles(self) -> None:
        child = os.fork()
        if child == 0:
            try:
                self.memory.read(0, 1)
            except venice.Closed:
                del self.memory
                os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.memory.write(0, b"the parent has it")


class ObjectCache(unittest.TestCase):
    def test_cache_keeps_what_fits(self) -> None:
        with venice.connect() as rack, rack.object_cache("16MiB") as cache:
            cache.put("planet", b"Jupiter")
            self.assertEqual(cache.get(b"planet"), b"Jupiter")
            self.assertIn("planet", cache)
            self.assertIsNone(cache.get("star"))
            for key in range(500):
                cache.put(str(key), bytes([key % 256]) * 100_000)
                cache.get("planet")
            self.assertEqual(cache.get("499"), bytes([499 % 256]) * 100_000)
            self.assertIsNone(cache.get("0"))
            self.assertIn("planet", cache)
            stats = cache.stats()
            self.assertGreater(stats.evictions, 300)
            self.assertEqual(stats.objects, len(cache))
            self.assertTrue(cache.delete("planet"))
            self.assertFalse(cache.delete("planet"))
            cache.clear()
            self.assertEqual(len(cache), 0)
            with self.assertRaises(venice.Invalid):
                cache.put("large", bytes(8 << 20))
        with self.assertRaises(venice.Closed):
            cache.get("planet")
        with self.assertRaises(venice.Invalid):
            rack.object_cache("1MiB")


if __name__ == "__main__":
    unittest.main()
