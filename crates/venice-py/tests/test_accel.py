"""Pools of accelerators: run by tests on a rack with two emulated ones, which have fft, sum and scale."""

import os
import signal
import unittest

import numpy
import venice
from venice.accel import Kernel, Pool


class PoolTest(unittest.TestCase):
    def test_transforms_agree_with_numpy(self) -> None:
        random = numpy.random.default_rng(16)
        shape = (32, 256)
        arrays = [
            (random.random(shape) + 1j * random.random(shape)).astype(numpy.complex64)
            for _ in range(9)
        ]
        with Pool(2, needs="fft") as pool:
            self.assertEqual(len(pool), 2)
            spectra = pool.map(Kernel("fft", 256), arrays)
        for array, spectrum in zip(arrays, spectra, strict=True):
            self.assertEqual((spectrum.dtype, spectrum.shape), (array.dtype, array.shape))
            numpy.testing.assert_allclose(spectrum, numpy.fft.fft(array), rtol=1e-3, atol=1e-3)
        self.assertTrue(pool.closed)

    def test_types_and_buffers(self) -> None:
        with Pool(1, needs="sum,scale") as pool:
            ones = numpy.ones((3, 4), numpy.float32)
            (total,) = pool.map("sum", [ones[:, ::2]])
            self.assertEqual((total.dtype, total.tolist()), (numpy.dtype("float64"), [6.0]))
            (twice,) = pool.map(Kernel("scale", 2.0), [ones])
            self.assertEqual(twice.tolist(), [[2.0] * 4] * 3)
            (raw,) = pool.map(Kernel("scale", 2.0), [ones.tobytes()])
            self.assertEqual(raw, twice.tobytes())
            self.assertEqual(pool.map("sum", []), [])

    def test_interrupt_ends_map(self) -> None:
        data = numpy.zeros(2_000_000, numpy.float32)
        with Pool(1, needs="sum") as pool:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            # Tasks of hours.
            with self.assertRaises(KeyboardInterrupt):
                pool.map("sum", [data] * 100_000)
            self.assertEqual(pool.map("sum", [data[:4]])[0].tolist(), [0.0])

    def test_failures_name_the_node(self) -> None:
        with Pool(1) as pool:
            with self.assertRaisesRegex(venice.TaskFailed, "accelerator of node"):
                pool.map("crypto", [b"1234"])
            with self.assertRaises(venice.TaskFailed):
                pool.map(Kernel("fft", 3), [b"12345678"])
        with self.assertRaises(venice.Closed):
            pool.map("sum", [b""])
        with self.assertRaises(venice.NoRoom):
            Pool(3)
        with self.assertRaisesRegex(venice.Invalid, "at least 1"):
            Pool(0)
        with self.assertRaisesRegex(venice.Invalid, "give a sequence"):
            Kernel("f", source="", global_size=0)  # type: ignore[arg-type]
        if "VENICE_GRANT_ENDPOINTS" not in os.environ:
            with self.assertRaises(venice.Invalid):
                Pool()


if __name__ == "__main__":
    unittest.main()
