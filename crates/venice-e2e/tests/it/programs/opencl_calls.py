"""Prints what calls of OpenCL answer on the first platform: a name and a value on each line."""

import ctypes
import struct
import sys
import tempfile
import threading

import numpy as np
import pyopencl as cl

# Functions that PyOpenCL does not offer, or whose errors it makes its own.
library = ctypes.CDLL("libOpenCL.so.1")
library.clCreateImage.restype = ctypes.c_void_p
library.clCreateKernel.restype = ctypes.c_void_p
library.clCreateProgramWithSource.restype = ctypes.c_void_p
library.clLinkProgram.restype = ctypes.c_void_p
NOTIFY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
SOURCE = """
kernel void add(global int *values, int more) { values[get_global_id(0)] += more; }
kernel void with_local(global int *values, local int *own) {
    own[get_local_id(0)] = values[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    values[get_global_id(0)] = own[0];
}
kernel void third(global int *values, int3 given) { values[0] = given.s2; }
"""
ITEMS = 64
PARTITIONS = [
    [cl.device_partition_property.EQUALLY, 1],
    [cl.device_partition_property.BY_COUNTS, 1, 1, 0],
]


def handle(item):
    return ctypes.c_void_p(item.int_ptr)


def image(context, kind, width, height=0, layers=0, buffer=0):
    """Makes an image of one unsigned number of 32 bits a pixel: its address, and the code."""
    form = struct.pack("II", cl.channel_order.R, cl.channel_type.UNSIGNED_INT32)
    # cl_image_desc: kind, width, height, depth, layers, two pitches, levels, samples, buffer.
    desc = struct.pack("@I6N2IP", kind, width, height, 0, layers, 0, 0, 0, 0, buffer)
    code = ctypes.c_int()
    made = library.clCreateImage(
        handle(context), ctypes.c_ulong(1), form, desc, None, ctypes.byref(code)
    )
    return made, code.value


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
    kernel = program.third
    kernel.set_arg(0, values)
    # A vector of three, of its own length, without its padding, and of other lengths.
    given = (ctypes.c_int * 5)(6, 7, 8, 9)
    codes = [library.clSetKernelArg(handle(kernel), 1, size, given) for size in (16, 12, 8, 20)]
    cl.enqueue_nd_range_kernel(queue, kernel, (1,), None)
    read = np.empty(1, np.int32)
    cl.enqueue_copy(queue, read, values)
    answer("vector_of_three", codes, read[0])


def objects(context):
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096)
    room = ctypes.c_uint()
    code = library.clGetPipeInfo(handle(buffer), 0x1120, 4, ctypes.byref(room), None)
    answer("pipe_of_buffer", code)
    _, code = image(context, cl.mem_object_type.IMAGE2D, 16, 16, buffer=buffer.int_ptr)
    answer("image_of_buffer", code)
    # The number of layers says nothing of an image without.
    _, code = image(context, cl.mem_object_type.IMAGE1D, 16, layers=1 << 40)
    answer("image_with_stray_layers", code)


def overlaps(context, queue):
    """Copies within one buffer whose source and target have bytes in common."""
    whole = cl.Buffer(context, cl.mem_flags.READ_WRITE, 8192)
    parts = whole.get_sub_region(0, 4096), whole.get_sub_region(4096, 4096)
    box = {"region": (10, 10, 1), "src_pitches": (20, 200), "dst_pitches": (20, 200)}

    def copy(*buffers, **where):
        try:
            cl.enqueue_copy(queue, *buffers, **where)
            return 0
        except cl.Error as error:
            return error.code

    copies = {
        "same_bytes": copy(whole, whole, byte_count=100, dst_offset=99),
        "next_bytes": copy(whole, whole, byte_count=100, dst_offset=100),
        "part_and_whole": copy(whole, parts[0], byte_count=100, src_offset=50),
        "two_parts": copy(parts[1], parts[0], byte_count=4096),
        "same_box": copy(whole, whole, src_origin=(0, 0, 0), dst_origin=(9, 9, 0), **box),
        "next_box": copy(whole, whole, src_origin=(0, 0, 0), dst_origin=(10, 0, 0), **box),
    }
    answer("overlaps", copies)
    queue.finish()


def long_calls(context, queue):
    """Calls whose lists and texts are longer than a message between machines."""
    gate = cl.UserEvent(context)
    buffers = [cl.Buffer(context, cl.mem_flags.READ_WRITE, 4) for _ in range(10000)]
    moved = cl.enqueue_migrate_mem_objects(queue, buffers, wait_for=[gate])
    marker = cl.enqueue_marker(queue, wait_for=[moved] * 10000)
    gate.set_status(cl.command_execution_status.COMPLETE)
    marker.wait()
    options = " ".join(f"-DNAME{at}=1" for at in range(8000))
    program = cl.Program(context, SOURCE).build(options)
    answer("long_calls", marker.command_execution_status, program.num_kernels)


def layers(context, queue):
    """Maps an image of layers."""
    made, _ = image(context, cl.mem_object_type.IMAGE1D_ARRAY, 3, layers=4)
    made = cl.Image.from_int_ptr(made, retain=False)

    def mapped(flags):
        told = cl.enqueue_map_image(queue, made, flags, (0, 0), (3, 4), (4, 3), np.uint32)
        return told[0], told[3]

    pixels, layer_bytes = mapped(cl.map_flags.WRITE)
    pixels[:] = np.arange(12).reshape(4, 3)
    pixels.base.release(queue)
    pixels, _ = mapped(cl.map_flags.READ)
    answer("layers", layer_bytes, pixels.tolist())


def builds(context):
    with tempfile.NamedTemporaryFile("w", suffix=".h") as header:
        header.write("#define MORE 5\n")
        header.flush()
        source = f'#include "{header.name}"\n{SOURCE}kernel void more(global int *v) {{ v[0] = MORE; }}'
        program = cl.Program(context, source).build()
        answer("absolute_include", program.num_kernels)
    device = context.devices[0]
    compiled = cl.Program(context, SOURCE).compile()
    binary = compiled.get_info(cl.program_info.BINARIES)[0]
    again = cl.Program(context, [device], [binary])
    kind = again.get_build_info(device, cl.program_build_info.BINARY_TYPE)
    answer("type_of_compiled_binary", kind)
    try:
        cl.Program(context, [device, device], [binary, binary])
        answer("binary_twice", 0)
    except cl.Error as error:
        answer("binary_twice", error.code)
    versions = device.get_info(cl.device_info.SPIR_VERSIONS)
    answer("spir", "cl_khr_spir" in device.extensions.split(), versions)


def descriptions(context):
    """Name of an argument, by the options of the build."""
    for options in None, b"", b"-cl-kernel-arg-info":
        text = ctypes.c_char_p(SOURCE.encode())
        made = library.clCreateProgramWithSource(handle(context), 1, ctypes.byref(text), None, None)
        program = ctypes.c_void_p(made)
        library.clBuildProgram(program, 0, None, options, None, None)
        answer("description", options, describe(program))
        library.clCompileProgram(program, 0, None, options, 0, None, None, None, None)
        made = library.clLinkProgram(
            handle(context), 0, None, None, 1, ctypes.byref(program), None, None, None
        )
        answer("linked_description", options, describe(ctypes.c_void_p(made)))


def describe(program):
    kernel = ctypes.c_void_p(library.clCreateKernel(program, b"add", None))
    name = ctypes.create_string_buffer(8)
    code = library.clGetKernelArgInfo(kernel, 1, 0x119A, 8, name, None)
    library.clReleaseKernel(kernel)
    return code, name.value


def early_use(context):
    """Builds with a callback, and does not wait for it; the source is not in UTF-8."""
    source = SOURCE.encode() + b"// \xe9\n"
    text, code = ctypes.c_char_p(source), ctypes.c_int()
    made = library.clCreateProgramWithSource(handle(context), 1, ctypes.byref(text), None, None)
    program, called = ctypes.c_void_p(made), threading.Semaphore(0)
    notify = NOTIFY(lambda _program, _user: called.release())
    codes = [library.clBuildProgram(program, 0, None, None, notify, None)]
    kernel = ctypes.c_void_p(library.clCreateKernel(program, b"add", ctypes.byref(code)))
    codes += [code.value, library.clReleaseKernel(kernel)]
    codes.append(library.clBuildProgram(program, 0, None, b"-DMORE", notify, None))
    status, device = ctypes.c_int(), handle(context.devices[0])
    codes.append(
        library.clGetProgramBuildInfo(program, device, 0x1181, 4, ctypes.byref(status), None)
    )
    kept = ctypes.create_string_buffer(len(source) + 1)
    codes.append(library.clGetProgramInfo(program, 0x1164, len(kept), kept, None))
    answer("source", kept.value == source)
    calls = [called.acquire(timeout=60) for _ in range(2)]
    answer("early_use", codes, status.value, calls)
    library.clReleaseProgram(program)


def main():
    device = cl.get_platforms()[0].get_devices()[0]
    context = cl.Context([device])
    partition(device)
    queue = cl.CommandQueue(context)
    launches(context, queue)
    overlaps(context, queue)
    long_calls(context, queue)
    layers(context, queue)
    objects(context)
    builds(context)
    descriptions(context)
    early_use(context)


sys.exit(main())
