"""Kernels in OpenCL C: run by tests on a rack with two OpenCL devices."""

import unittest

import numpy
import venice
from venice.accel import Input, Kernel, Local, Output, Pool

NORM = """
kernel void norm(global const float2 *in, float scale, global float *out) {
    size_t at = get_global_id(0);
    out[at] = scale * length(in[at]);
}
"""
TWICE = """
kernel void twice(global const REAL *in, global REAL *out) {
    size_t at = get_global_id(0);
    out[at] = 2 * in[at];
}
"""
ROWS = """
kernel void rows(global const float *in, local float *parts, global float *out) {
    size_t row = get_group_id(0), at = get_local_id(0), width = get_local_size(0);
    parts[at] = in[row * width + at];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (at == 0) {
        float sum = 0;
        for (size_t part = 0; part < width; part++)
            sum += parts[part];
        out[row] = sum;
    }
}
"""


class OpenClTest(unittest.TestCase):
    def test_results_are_numpys(self) -> None:
        random = numpy.random.default_rng(7)
        arrays = [random.random((1000, 2), numpy.float32) for _ in range(20)]
        half = Output(0, 4000)
        norm = Kernel("norm", Input(), 0.5, half, source=NORM, item_bytes=8)
        with Pool(2, needs="opencl") as pool:
            norms = pool.map(norm, arrays)
        self.assertEqual(len(norms), 20)
        for array, found in zip(arrays, norms, strict=True):
            expected = numpy.linalg.norm(array, axis=1) / 2
            numpy.testing.assert_allclose(found, expected, rtol=1e-5)

    def test_items_follow_the_type(self) -> None:
        with Pool(1, needs="opencl") as pool:
            for dtype, real in [("float32", "float"), ("float64", "double"), ("int16", "short")]:
                arrays = [numpy.arange(n * 10, dtype=dtype).reshape(10, n) for n in (1, 50, 300)]
                twice = Kernel("twice", source=TWICE, options=f"-DREAL={real}")
                for array, found in zip(arrays, pool.map(twice, arrays), strict=True):
                    self.assertEqual((found.dtype, found.shape), (array.dtype, array.shape))
                    numpy.testing.assert_array_equal(found, 2 * array)

    def test_groups_share_memory(self) -> None:
        array = numpy.arange(32 * 16, dtype=numpy.float32).reshape(32, 16)
        rows = Kernel(
            "rows",
            Input(),
            Local(64),
            Output(0, 128),
            source=ROWS,
            global_size=(512,),
            local_size=(16,),
        )
        with Pool(1, needs="opencl") as pool:
            (sums,) = pool.map(rows, [array])
        numpy.testing.assert_allclose(sums, array.sum(axis=1))

    def test_losses_say_why(self) -> None:
        crash = "kernel void f(global int *in, global int *out) { out[(size_t)1 << 40] = 1; }"
        with Pool(2, needs="opencl") as pool:
            with self.assertRaisesRegex(venice.TaskFailed, "its service has ended: SIG"):
                pool.map(Kernel("f", source=crash), [b"1234"])
            self.assertEqual(len(pool.lost), 2)
            for _, why in pool.lost:
                self.assertIn("its service has ended: SIG", why)

    def test_compiler_says_why(self) -> None:
        with Pool(1, needs="opencl") as pool:
            wrong = Kernel("f", source="kernel void f(global float *in) { in[0] = nowhere; }")
            with self.assertRaisesRegex(venice.TaskFailed, "nowhere"):
                pool.map(wrong, [b"1234"])
            with self.assertRaisesRegex(venice.TaskFailed, "no kernel 'g'"):
                pool.map(Kernel("g", source="kernel void f() {}"), [b"1234"])


if __name__ == "__main__":
    unittest.main()
