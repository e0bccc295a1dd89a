#!/usr/bin/python3
"""Draws the Mandelbrot set on granted OpenCL devices, a band of rows for each task.

    venice up --offer node2/accelerator:opencl=256MiB --offer node3/accelerator:opencl=256MiB
    /usr/bin/python3 examples/python/opencl_pool.py 2
    venice get accelerator:opencl=2 -- /usr/bin/python3 examples/python/opencl_pool.py

The kernel is compiled at the donors. A band whose donor is lost is drawn by another one.
"""

import sys

import numpy as np
import venice
from venice.accel import Kernel, Pool

SOURCE = """
kernel void escape(global const float2 *points, global int *steps) {
    size_t at = get_global_id(0);
    float2 c = points[at], z = (float2)(0);
    int step = 0;
    while (step < 255 && dot(z, z) < 4) {
        z = (float2)(z.x * z.x - z.y * z.y, 2 * z.x * z.y) + c;
        step++;
    }
    steps[at] = step;
}
"""
WIDTH, HEIGHT, BANDS = 960, 640, 32

x = np.linspace(-2.2, 0.8, WIDTH, dtype=np.float32)
y = np.linspace(-1, 1, HEIGHT, dtype=np.float32)
points = np.stack(np.meshgrid(x, y), axis=-1)
bands = np.split(points, BANDS)

escape = Kernel(
    "escape",
    venice.accel.Input(),
    venice.accel.Output(0, bands[0].nbytes // 2),
    source=SOURCE,
    item_bytes=8,
    dtype="int32",
)
with Pool(int(sys.argv[1]), needs="opencl") if len(sys.argv) > 1 else Pool() as pool:
    print(f"{len(pool)} accelerators", flush=True)
    steps = np.concatenate(pool.map(escape, bands)).reshape(HEIGHT, WIDTH)

for row in steps[:: HEIGHT // 20]:
    print("".join(" .:-=+*#%@"[step * 9 // 255] for step in row[:: WIDTH // 60]))
