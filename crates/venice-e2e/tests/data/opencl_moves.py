"""An OpenCL program whose device moves to another donor while it works.

usage: opencl_moves.py MODE STOP, where the program ends once the file STOP exists. MODE is
steady    everything that a device holds is used again and again, by two threads
mapped    holds a mapped buffer until the file STOP.unmap exists, then works on
programs  builds a program again and again, and has others that wait to be built and linked
unused    has events of its own that nothing waits for
lost      calls clFinish of idle queues once the file STOP.lost exists, and ends with 0 if each fails
waiting   has commands that wait for an event of its own until the file STOP.set exists
It ends with 3 if anything is wrong, and with 4 if a device is lost.
"""

import os
import sys
import threading
import time

import numpy
import pyopencl as cl

MODE, STOP = sys.argv[1:3]
SOURCE = """
__kernel void add(__global uint *a, uint k) { a[get_global_id(0)] += k; }
__kernel void pick(__read_only image2d_t image, sampler_t sampler, __global uint4 *out) {
    int x = get_global_id(0), y = get_global_id(1);
    out[y * get_global_size(0) + x] = read_imageui(image, sampler, (int2)(x, y));
}
"""
LIBRARY = "uint twice(uint x) { return 2 * x; }"
USER = "uint twice(uint x);\n__kernel void both(__global uint *a) { int i = get_global_id(0); a[i] = twice(a[i]); }"
WORDS = 1 << 16


def devices():
    [platform] = [it for it in cl.get_platforms() if it.name == "Venice"]
    return platform.get_devices()


def exists(suffix=""):
    return os.path.exists(STOP + suffix)


def ready():
    open(STOP + ".ready", "w").close()


class Worker:
    """Objects of every kind on one device, with what they have to hold."""

    def __init__(self, context, device, ordered):
        out_of_order = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        properties = 0 if ordered else out_of_order
        self.context, self.ordered = context, ordered
        self.queue = cl.CommandQueue(context, device, properties)
        flags = cl.mem_flags
        self.count = 0
        start = numpy.arange(WORDS, dtype=numpy.uint32)
        self.start = start
        self.buffer = cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=start)
        self.part = self.buffer.get_sub_region(4096, 4096)
        self.pixels = numpy.random.randint(0, 256, (32, 32, 4), numpy.uint8)
        form = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
        self.image = cl.Image(context, flags.READ_WRITE | flags.COPY_HOST_PTR, form, (32, 32), hostbuf=self.pixels)
        self.sampler = cl.Sampler(context, False, cl.addressing_mode.CLAMP_TO_EDGE, cl.filter_mode.NEAREST)
        self.picked = cl.Buffer(context, flags.WRITE_ONLY, 32 * 32 * 16)
        built = cl.Program(context, SOURCE).build()
        binary = built.get_info(cl.program_info.BINARIES)[0]
        loaded = cl.Program(context, [device], [binary]).build()
        self.add, self.pick = built.add, loaded.pick
        compiled = [cl.Program(context, text) for text in (LIBRARY, USER)]
        compiled = [program.compile() for program in compiled]
        linked = cl.link_program(context, compiled)
        self.both = linked.both
        # Their programs are gone, as far as this one knows.
        del built, loaded, compiled, linked
        self.ended = 0

    def round(self):
        before = []
        for step in range(8):
            event = self.add(self.queue, (WORDS,), None, self.buffer, numpy.uint32(1), wait_for=before)
            before = [] if self.ordered else [event]
            self.count += 1
        event.set_callback(cl.command_execution_status.COMPLETE, self.note)
        part = numpy.empty(1024, numpy.uint32)
        cl.enqueue_copy(self.queue, part, self.part, wait_for=before)
        assert (part == self.start[1024:2048] + self.count).all(), "part of a buffer"
        self.pick(self.queue, (32, 32), None, self.image, self.sampler, self.picked)
        self.queue.finish()
        picked = numpy.empty((32, 32, 4), numpy.uint32)
        cl.enqueue_copy(self.queue, picked, self.picked)
        assert (picked == self.pixels).all(), "image"

    def note(self, _status):
        self.ended += 1

    def check(self):
        words = numpy.empty(WORDS, numpy.uint32)
        cl.enqueue_copy(self.queue, words, self.buffer)
        assert (words == self.start + self.count).all(), "buffer"
        self.both(self.queue, (WORDS,), None, self.buffer).wait()
        cl.enqueue_copy(self.queue, words, self.buffer)
        assert (words == 2 * (self.start + self.count)).all(), "linked program"


def steady():
    context = cl.Context(devices())
    workers = [Worker(context, context.devices[at % len(context.devices)], at == 0) for at in range(2)]
    whole = context.devices[0]
    if whole.max_compute_units > 1:
        parts = whole.create_sub_devices([cl.device_partition_property.EQUALLY, 1])
        workers.append(Worker(cl.Context(parts), parts[1], True))
    failures = []

    def work(worker):
        try:
            while not exists():
                worker.round()
            worker.check()
        except cl.Error as failure:
            # The second one is that of a command which waits for a failed one.
            is_lost = failure.code in (
                cl.status_code.DEVICE_NOT_AVAILABLE,
                cl.status_code.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST,
            )
            failures.append(4 if is_lost else 3)
            if not is_lost:
                raise
        except Exception:
            failures.append(3)
            raise

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    [thread.start() for thread in threads]
    ready()
    [thread.join() for thread in threads]
    if failures:
        print("failed", len(failures))
        sys.exit(min(failures))
    print("right", sum(worker.count for worker in workers))


def mapped():
    context = cl.Context(devices()[:1])
    worker = Worker(context, context.devices[0], True)
    host, _ = cl.enqueue_map_buffer(worker.queue, worker.buffer, cl.map_flags.WRITE, 0, (WORDS,), numpy.uint32)
    ready()
    while not exists(".unmap"):
        host += 1
        worker.count += 1
        time.sleep(0.01)
    host.base.release(worker.queue)
    while not exists():
        worker.round()
    worker.check()
    print("right", worker.count)


def programs():
    context = cl.Context(devices()[:1])
    device = context.devices[0]
    worker = Worker(context, device, True)
    binary = cl.Program(context, SOURCE).build().get_info(cl.program_info.BINARIES)[0]
    unbuilt = cl.Program(context, [device], [binary])
    objects = [cl.Program(context, text) for text in (LIBRARY, USER)]
    objects = [program.compile() for program in objects]
    again = cl._cl._Program(context, "__kernel void set(__global uint *a) { a[get_global_id(0)] = VALUE; }")
    target = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096)
    words = numpy.empty(1024, numpy.uint32)
    ready()
    value = 0
    while not exists():
        value += 1
        again._build(b"-DVALUE=%du" % value, None)
        kernel = cl.Kernel(again, "set")
        kernel.set_args(target)
        cl.enqueue_nd_range_kernel(worker.queue, kernel, (1024,), None)
        # While it has a kernel, it cannot be built.
        del kernel
        cl.enqueue_copy(worker.queue, words, target)
        assert (words == value).all(), "program built again"
        worker.round()
    worker.add = unbuilt.build().add
    worker.both = cl.link_program(context, objects).both
    worker.round()
    worker.check()
    print("right", value)


def unused():
    context = cl.Context(devices()[:1])
    worker = Worker(context, context.devices[0], True)
    own = [cl.UserEvent(context) for _ in range(3)]
    own[0].set_callback(cl.command_execution_status.COMPLETE, lambda _status: None)
    ready()
    while not exists():
        worker.round()
    [event.set_status(cl.command_execution_status.COMPLETE) for event in own]
    worker.check()
    print("right", worker.count)


def lost():
    context = cl.Context(devices()[:1])
    quiet = cl.CommandQueue(context)
    cl.enqueue_fill_buffer(quiet, cl.Buffer(context, cl.mem_flags.READ_WRITE, 64), b"x", 0, 64)
    quiet.finish()
    ready()
    while not exists(".lost"):
        time.sleep(0.01)
    failed = 0
    for queue in (quiet, quiet, cl.CommandQueue):
        try:
            if queue is cl.CommandQueue:
                queue = cl.CommandQueue(context)
            queue.finish()
        except cl.Error as failure:
            failed += failure.code == cl.status_code.DEVICE_NOT_AVAILABLE
    print("right", failed)
    sys.exit(failed != 3)


def waiting():
    context = cl.Context(devices()[:1])
    worker = Worker(context, context.devices[0], True)
    own = cl.UserEvent(context)
    for _ in range(10):
        worker.add(worker.queue, (WORDS,), None, worker.buffer, numpy.uint32(1), wait_for=[own])
        worker.count += 1
    worker.queue.flush()
    ready()
    while not exists(".set"):
        time.sleep(0.01)
        # The program enqueues while its device is to move.
        worker.add(worker.queue, (WORDS,), None, worker.buffer, numpy.uint32(1))
        worker.count += 1
    own.set_status(cl.command_execution_status.COMPLETE)
    while not exists():
        worker.round()
    worker.check()
    print("right", worker.count)


{"steady": steady, "mapped": mapped, "programs": programs, "waiting": waiting, "unused": unused, "lost": lost}[MODE]()
