"""Prints what calls of OpenCL answer on the first platform: a name and a value on each line."""

import ctypes
import struct
import sys

import numpy as np
import pyopencl as cl

# Functions that PyOpenCL does not offer, or whose errors it makes its own.
library = ctypes.CDLL("libOpenCL.so.1")
SOURCE = """
kernel void add(global int *values, int more) { values[get_global_id(0)] += more; }
kernel void with_local(global int *values, local int *own) {
    own[get_local_id(0)] = values[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    values[get_global_id(0)] = own[0];
}
"""
ITEMS = 64
PARTITIONS = [
    [cl.device_partition_property.EQUALLY, 1],
    [cl.device_partition_property.BY_COUNTS, 1, 1, 0],
]


def handle(item):
    return ctypes.c_void_p(item.int_ptr)


def answer(name, *values):
    print(name, *values)


def partition(device):
    """Parts of the device share a buffer, and each runs kernels."""
    for properties in PARTITIONS:
        parts = device.create_sub_devices(properties)
        described = [
            (
                part.max_compute_units,
                part.parent_device == device,
                part.reference_count,
                part.partition_type,
            )
            for part in parts
        ]
        context = cl.Context(parts)
        program = cl.Program(context, SOURCE).build()
        values = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4 * ITEMS)
        queues = [cl.CommandQueue(context, part) for part in parts]
        cl.enqueue_copy(queues[0], values, np.zeros(ITEMS, np.int32))
        for queue in queues:
            program.add(queue, (ITEMS,), None, values, np.int32(3)).wait()
        read = np.empty(ITEMS, np.int32)
        cl.enqueue_copy(queues[-1], read, values)
        answer("partition", properties, described, read.sum())
    refused = [
        [cl.device_partition_property.EQUALLY, 4096],
        [cl.device_partition_property.BY_COUNTS, 4096, 0],
    ]
    for properties in refused:
        try:
            device.create_sub_devices(properties)
            answer("partition", properties, 0)
        except cl.Error as error:
            answer("partition", properties, error.code)


def launches(context, queue):
    program = cl.Program(context, SOURCE).build()
    values = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4 * ITEMS)
    kernel = program.add
    kernel.set_args(values, np.int32(1))
    none = (ctypes.c_size_t * 1)(0)
    for name, sizes in [("no_sizes", None), ("no_items", none)]:
        code = library.clEnqueueNDRangeKernel(
            handle(queue), handle(kernel), 1, None, sizes, None, 0, None, None
        )
        answer(name, code)
    queue.finish()
    kernel = program.with_local
    kernel.set_args(values, cl.LocalMemory(512))
    told = kernel.get_work_group_info(cl.kernel_work_group_info.LOCAL_MEM_SIZE, context.devices[0])
    answer("local_memory", told)


def objects(context):
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096)
    room = ctypes.c_uint()
    code = library.clGetPipeInfo(handle(buffer), 0x1120, 4, ctypes.byref(room), None)
    answer("pipe_of_buffer", code)
    form = struct.pack("II", cl.channel_order.RGBA, cl.channel_type.UNORM_INT8)
    kind = cl.mem_object_type.IMAGE2D
    # cl_image_desc: kind, width, height, depth, layers, two pitches, levels, samples, buffer.
    desc = struct.pack("@I6N2IP", kind, 16, 16, 0, 0, 0, 0, 0, 0, buffer.int_ptr)
    library.clCreateImage(handle(context), ctypes.c_ulong(1), form, desc, None, ctypes.byref(room))
    answer("image_of_buffer", ctypes.c_int(room.value).value)


def main():
    device = cl.get_platforms()[0].get_devices()[0]
    context = cl.Context([device])
    partition(device)
    launches(context, cl.CommandQueue(context))
    objects(context)


sys.exit(main())
