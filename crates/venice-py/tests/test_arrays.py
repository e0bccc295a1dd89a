"""Arrays in borrowed memory, on the rack that VENICE_RUN_DIR names. Needs what `venice run` needs."""

import gc
import os
import subprocess
import threading
import time
import unittest
from typing import Callable

import numpy as np
import venice

MIB = 1 << 20


def eventually(found: Callable[[], bool]) -> bool:
    """Returns true if the condition holds within ten seconds."""
    deadline = time.monotonic() + 10
    while not found():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Arrays(unittest.TestCase):
    def setUp(self) -> None:
        self.rack = venice.connect()
        self.free = self.rack.free_bytes()

    def tearDown(self) -> None:
        gc.collect()
        self.assertEqual(self.rack.free_bytes(), self.free, "all was given back")

    def test_array_exceeds_budget(self) -> None:
        array = self.rack.array(6 * MIB, np.int64, local="8MiB")
        self.assertEqual(array.sum(), 0)
        array[:] = np.arange(array.size)
        self.assertEqual(int(array.sum()), array.size * (array.size - 1) // 2)
        picked = np.random.default_rng(1).integers(0, array.size, 2000)
        self.assertTrue(np.array_equal(array[picked], picked))
        array[picked] = -1
        self.assertTrue((array[picked] == -1).all())
        self.assertEqual(int((array == -1).sum()), len(set(picked.tolist())))

    def test_arrays_share_budget(self) -> None:
        with self.rack.paged("48MiB", local="6MiB") as paged:
            numbers = paged.array((1000, 1000), np.float32)
            others = paged.array(4 * MIB, np.int64)
            self.assertEqual(numbers.shape, (1000, 1000))
            for _ in range(3):
                numbers += 1
                others += 2
            self.assertTrue((numbers == 3).all() and (others == 6).all())
            self.assertLessEqual(paged.resident_bytes, 6 * MIB + MIB)
            self.assertEqual(paged.capacity_bytes, 48 * MIB)
            with self.assertRaises(venice.NoRoom):
                paged.array(2 * MIB, np.int64)
            del others
            again = paged.array(4 * MIB, np.int64)
            self.assertEqual(int(again.max()), 0, "fresh memory is zeros")
        with self.assertRaises(venice.Closed):
            paged.array(1)
        self.assertTrue((numbers == 3).all(), "arrays outlive what they were made from")

    def test_budget_changes_during_use(self) -> None:
        with self.rack.paged("32MiB", local="16MiB") as paged:
            self.assertEqual(paged.local_bytes, 16 * MIB)
            array = paged.array(4 * MIB, np.int64)
            array[:] = np.arange(array.size)
            self.assertGreater(paged.resident_bytes, 8 * MIB)
            for local, bound in [("6MiB", 6 * MIB), ("12MiB", 12 * MIB), (5 * MIB, 5 * MIB)]:
                paged.set_local(local)
                self.assertEqual(paged.local_bytes, bound)
                self.assertTrue(eventually(lambda: paged.resident_bytes <= bound))
                self.assertTrue((array == np.arange(array.size)).all())
                self.assertLessEqual(paged.resident_bytes, bound)
            for wrong in ["3MiB", -1]:
                with self.assertRaises(venice.Invalid):
                    paged.set_local(wrong)
            self.assertEqual(paged.local_bytes, 5 * MIB)
        with self.assertRaises(venice.Closed):
            paged.set_local("8MiB")

    def test_advice_pages_in_and_out(self) -> None:
        with self.rack.paged("32MiB", local="8MiB") as paged:
            array = paged.array((4, MIB), np.int64)
            array[:] = np.arange(array.size).reshape(array.shape)
            venice.advise(array, "pageout")
            self.assertLess(paged.resident_bytes, MIB)
            wanted = array[1][: MIB // 4]
            venice.advise(wanted, "willneed")
            # The last pages may still be in flight; pages of zeros take no memory.
            self.assertTrue(eventually(lambda: paged.resident_bytes > wanted.nbytes * 3 // 4))
            self.assertLess(paged.resident_bytes, wanted.nbytes + MIB)
            venice.advise(wanted[::-3], "pageout")
            self.assertLess(paged.resident_bytes, MIB)
            for hint in ("sequential", "random", "normal", "cold"):
                venice.advise(array[2:], hint)
                self.assertEqual(int(array[3][5]), 3 * MIB + 5)
            venice.advise(array[4:], "cold")
            self.assertTrue((array == np.arange(array.size).reshape(array.shape)).all())
            with self.assertRaisesRegex(venice.Invalid, "willneed"):
                venice.advise(array, "dontneed")
            with self.assertRaisesRegex(venice.Invalid, "not in borrowed memory"):
                venice.advise(np.zeros(4), "cold")

    def test_view_keeps_memory(self) -> None:
        array = self.rack.array(1000, np.int32, local="4MiB")
        array[:] = 5
        view = array[10:20]
        del array
        gc.collect()
        self.assertLess(self.rack.free_bytes(), self.free)
        self.assertEqual(view.tolist(), [5] * 10)

    def test_threads_share_array(self) -> None:
        array = self.rack.array((4, MIB), np.int64, local="4MiB")

        def add(row: int) -> None:
            for _ in range(3):
                array[row] += row + 1

        threads = [threading.Thread(target=add, args=(row,)) for row in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(array.sum(axis=1).tolist(), [3 * MIB * (row + 1) for row in range(4)])

    def test_kernel_reads_and_writes_array(self) -> None:
        array = self.rack.array(16 * MIB, np.uint8, local="4MiB")
        array[:] = np.arange(array.size, dtype=np.uint32).astype(np.uint8)
        with open(os.memfd_create("copy"), "w+b") as file:
            file.write(array)
            array[:] = 0
            file.seek(0)
            self.assertEqual(file.readinto(array), array.size)
        self.assertEqual(int(array[12345]), 12345 % 256)
        self.assertEqual(int(array.sum(dtype=np.int64)), array.size // 256 * (255 * 256 // 2))

    def test_forked_child_has_no_array(self) -> None:
        array = self.rack.array(4 * MIB, np.int64, local="4MiB")
        array[:] = 7
        self.assertEqual(subprocess.run(["true"], check=False).returncode, 0)
        child = os.fork()
        if child == 0:
            del array
            gc.collect()
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue((array == 7).all())

    def test_spaces_come_and_go(self) -> None:
        threads = len(os.listdir("/proc/self/task"))
        for round in range(5):
            array = self.rack.array(MIB, np.int64, local="4MiB")
            array[:] = round
            self.assertEqual(int(array.sum()), round * MIB)
            del array
            gc.collect()
        self.assertEqual(len(os.listdir("/proc/self/task")), threads)

    def test_invalid_arrays_are_refused(self) -> None:
        with self.assertRaises(TypeError):
            self.rack.array(10, object)
        with self.assertRaises(venice.Invalid):
            self.rack.array(10, local="1MiB")
        with self.assertRaises(venice.NoRoom):
            self.rack.array(1 << 40)
        for shape in [-1, (4, -4), 1 << 70]:
            with self.subTest(shape), self.assertRaises(venice.Invalid):
                self.rack.array(shape)
        with self.rack.paged("16MiB") as paged:
            with self.assertRaisesRegex(venice.Invalid, "64k"):
                paged.array(10, page_size="3k")
            with self.assertRaises(venice.Invalid):
                paged.array(1 << 70)


if __name__ == "__main__":
    unittest.main()
