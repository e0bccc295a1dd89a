#!/usr/bin/python3
"""Adds two vectors on every device of the first OpenCL platform, and checks the sums.

    venice run --accelerators 2 -- /usr/bin/python3 examples/python/opencl_sum.py

It knows nothing of Venice: without `venice run` it uses the devices of this machine. Debian:
apt install python3-pyopencl python3-numpy.
"""

import numpy as np
import pyopencl as cl

SOURCE = """
__kernel void add(__global const float *a, __global const float *b, __global float *sum) {
    int at = get_global_id(0);
    sum[at] = a[at] + b[at];
    if (at == 0) printf("first sum: %.1f\\n", sum[at]);
}
"""

platform = cl.get_platforms()[0]
a = np.arange(1 << 20, dtype=np.float32)
b = 2 * a + 1

for device in platform.get_devices():
    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    flags = cl.mem_flags
    on_a = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=a)
    on_b = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=b)
    on_sum = cl.Buffer(context, flags.WRITE_ONLY, a.nbytes)
    program = cl.Program(context, SOURCE).build()
    program.add(queue, a.shape, None, on_a, on_b, on_sum)
    total = np.empty_like(a)
    cl.enqueue_copy(queue, total, on_sum)
    verdict = "right" if np.array_equal(total, a + b) else "WRONG"
    print(f"{device.name}: {verdict}", flush=True)
