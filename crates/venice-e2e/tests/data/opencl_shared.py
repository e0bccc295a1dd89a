"""Buffers and images that all devices of a context use in turn, against a model in numpy.

usage: opencl_shared.py STOP, which works until the file STOP exists, and ends with 3 if anything is
wrong. The commands of a round wait for an event that the program sets once all are enqueued: no call
may wait for another command.
"""

import os
import random
import sys

import numpy
import pyopencl as cl

STOP = sys.argv[1]
SOURCE = """
__kernel void add(__global uint *a, uint k) { a[get_global_id(0)] += k; }
__kernel void blend(__global const uint *a, __global uint *b) {
    int i = get_global_id(0);
    b[i] = 3 * b[i] + a[i];
}
"""
WORDS = 5000
PART = 1024
ROUNDS_AT_LEAST = 8


class Shared:
    """A buffer with what it has to hold, and the events of the commands that used it last."""

    def __init__(self, context, random_words):
        self.words = random_words(WORDS)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        self.buffer = cl.Buffer(context, flags, hostbuf=self.words)
        self.part = self.buffer.get_sub_region(4 * PART, 4 * PART)
        self.stored, self.loaded = [], []

        # PyOpenCL waits for those that it lets go.
        self.all = []

    def before_load(self):
        return list(self.stored)

    def before_store(self):
        return self.stored + self.loaded

    def load(self, event):
        self.loaded.append(event)
        self.all.append(event)

    def store(self, event):
        self.stored, self.loaded = [event], []
        self.all.append(event)


class Worker:
    def __init__(self, seed):
        [platform] = [it for it in cl.get_platforms() if it.name == "Venice"]
        devices = platform.get_devices()
        self.random = random.Random(seed)
        self.numbers = numpy.random.default_rng(seed)
        self.context = cl.Context(devices)
        out_of_order = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        self.queues = [cl.CommandQueue(self.context, it, order) for it in devices for order in (0, out_of_order)]
        program = cl.Program(self.context, SOURCE).build()
        self.add, self.blend = program.add, program.blend
        self.shared = [Shared(self.context, self.some_words) for _ in range(4)]
        form = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT32)
        self.image = cl.Image(self.context, cl.mem_flags.READ_WRITE, form, (8, PART // 32))
        self.read, self.count = [], 0

    def some_words(self, count):
        return self.numbers.integers(0, 1 << 32, count, numpy.uint32)

    def step(self, first):
        a, b = self.random.sample(self.shared, 2)
        queue = self.random.choice(self.queues)
        step = self.random.choice([self.adds, self.adds_to_part, self.blends, self.writes, self.copies, self.passes_image, self.reads, self.fills])
        step(queue, a, b, first)
        self.count += 1

    def adds(self, queue, a, _, first):
        k = self.random.randrange(1 << 32)
        a.store(self.add(queue, (WORDS,), None, a.buffer, numpy.uint32(k), wait_for=a.before_store() + first))
        a.words = a.words + numpy.uint32(k)

    def adds_to_part(self, queue, a, _, first):
        a.store(self.add(queue, (PART,), None, a.part, numpy.uint32(7), wait_for=a.before_store() + first))
        a.words = a.words.copy()
        a.words[PART : 2 * PART] += numpy.uint32(7)

    def blends(self, queue, a, b, first):
        event = self.blend(queue, (WORDS,), None, a.buffer, b.buffer, wait_for=a.before_load() + b.before_store() + first)
        a.load(event)
        b.store(event)
        b.words = numpy.uint32(3) * b.words + a.words

    def writes(self, queue, a, _, first):
        a.words = self.some_words(WORDS)
        a.store(cl.enqueue_copy(queue, a.buffer, a.words, is_blocking=False, wait_for=a.before_store() + first))

    def copies(self, queue, a, b, first):
        event = cl.enqueue_copy(queue, b.buffer, a.buffer, byte_count=4 * PART, wait_for=a.before_load() + b.before_store() + first)
        a.load(event)
        b.store(event)
        b.words = b.words.copy()
        b.words[:PART] = a.words[:PART]

    def passes_image(self, queue, a, b, first):
        """Bytes go by an image, maybe through two devices."""
        region, other = (8, PART // 32), self.random.choice(self.queues)
        there = cl.enqueue_copy(queue, self.image, a.buffer, offset=0, origin=(0, 0), region=region, wait_for=a.before_load() + self.image_free + first)
        event = cl.enqueue_copy(other, b.buffer, self.image, offset=0, origin=(0, 0), region=region, wait_for=b.before_store() + [there])
        a.load(there)
        self.image_free = [event]
        b.store(event)
        b.words = b.words.copy()
        b.words[:PART] = a.words[:PART]

    def fills(self, queue, a, _, first):
        word = numpy.uint32(self.random.randrange(1 << 32))
        a.store(cl.enqueue_fill_buffer(queue, a.buffer, word, 0, 4 * WORDS, wait_for=a.before_store() + first))
        a.words = numpy.full(WORDS, word)

    def reads(self, queue, a, _, first):
        into = numpy.empty(WORDS, numpy.uint32)
        a.load(cl.enqueue_copy(queue, into, a.buffer, is_blocking=False, wait_for=a.before_load() + first))
        self.read.append((into, a.words))

    def round(self):
        first = cl.UserEvent(self.context)
        self.image_free = []
        for _ in range(self.random.randrange(2, 30)):
            self.step([first])
        first.set_status(cl.command_execution_status.COMPLETE)
        for queue in self.queues:
            queue.finish()
        for shared in self.shared:
            into = numpy.empty(WORDS, numpy.uint32)
            cl.enqueue_copy(self.random.choice(self.queues), into, shared.buffer)
            self.read.append((into, shared.words))
            shared.stored, shared.loaded, shared.all = [], [], []
        for got, expected in self.read:
            if not (got == expected).all():
                print("wrong", self.count)
                sys.exit(3)
        self.read = []


def main():
    worker = Worker(int(os.environ.get("PROPTEST_RNG_SEED", "7")))
    rounds = 0
    while rounds < ROUNDS_AT_LEAST or not os.path.exists(STOP):
        worker.round()
        rounds += 1
        if rounds == 2:
            open(STOP + ".ready", "w").close()
    print("right", worker.count)


main()
