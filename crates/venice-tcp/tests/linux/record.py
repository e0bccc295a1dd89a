#!/usr/bin/env python3
"""Records which segments Linux sends under chosen losses: the traces beside this file.

    sudo crates/venice-tcp/tests/linux/record.py [NAME...]

Two network namespaces, each with a TUN device, and this program between them: it forwards each packet
after 10 ms and drops, or marks, the data segments whose numbers the scenario names. It needs root, /dev/net/tun
and Python. The test `linux` replays the scenarios with our stack and compares the order.
"""

import array
import ctypes
import fcntl
import os
import platform
import random
import select
import socket
import struct
import subprocess
import sys
import time

DELAY = 0.010
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
SIOCOUTQ = 0x5411
SENDER, RECEIVER = "10.77.0.1", "10.77.0.2"
HERE = os.path.dirname(os.path.abspath(__file__))


def scenarios():
    """Yields name, segments of 1000 bytes, numbers of those dropped, settings: sysctls, and one."""
    reno = {"congestion": "reno"}
    plain = reno | {"tcp_early_retrans": 0}
    no_sack = plain | {"tcp_sack": 0}
    cubic = {"congestion": "cubic", "tcp_early_retrans": 0}
    yield "one-lost", 30, [3], plain
    yield "three-lost", 30, [2, 4, 6], plain
    yield "burst-lost", 40, [11, 12, 13, 14, 15, 16], plain
    yield "first-lost", 30, [1], plain
    yield "tail-lost", 10, [10], plain
    yield "two-of-tail-lost", 10, [9, 10], plain
    yield "tail-but-one-lost", 10, [9], plain
    yield "tail-probed", 10, [10], reno
    yield "tail-of-three-probed", 10, [8, 9, 10], reno
    yield "window-lost", 10, list(range(1, 11)), plain
    yield "retransmission-lost", 60, [1, 13], plain
    yield "timeout-lost", 1, [1, 2, 3], plain
    yield "no-sack-one-lost", 30, [3], no_sack
    yield "no-sack-three-lost", 30, [2, 4, 6], no_sack
    yield "no-sack-window-lost", 10, list(range(1, 11)), no_sack
    yield "no-sack-tail-lost", 10, [10], no_sack
    yield "no-timestamps", 40, [5, 20], plain | {"tcp_timestamps": 0}
    yield "large-window", 300, [100], plain
    yield "large-window-many-lost", 300, [100, 102, 104, 106, 108, 120, 121, 122, 123, 124, 125, 126], plain
    yield "half-lost", 200, list(range(31, 71, 2)), plain
    yield "cubic-one-lost", 200, [40], cubic
    yield "cubic-often-lost", 300, [40, 160, 161], cubic
    yield "marked", 100, [], plain | {"tcp_ecn": 1, "marked": "15 16 17 50"}
    yield "marked-and-lost", 100, [40], plain | {"tcp_ecn": 1, "marked": "15"}
    yield "default-tail-lost", 30, [29, 30], {"congestion": "cubic", "tcp_frto": 2}
    yield "default-window-lost", 40, list(range(11, 31)), {"congestion": "cubic", "tcp_frto": 2}
    for seed in range(1, 6):
        chance = random.Random(seed)
        yield f"random-{seed}", 200, [n for n in range(1, 260) if chance.random() < 0.04], plain


def own_network():
    clone_newnet = 0x40000000
    if ctypes.CDLL(None, use_errno=True).unshare(clone_newnet) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def tun(name, address, peer, sysctls):
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    mtu = 1052 if sysctls.get("tcp_timestamps", 1) else 1040
    for command in (
        "link set lo up",
        f"address add {address} peer {peer} dev {name}",
        f"link set {name} mtu {mtu} gso_max_segs 1 txqueuelen 10000 up",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    return device


def configure(sysctls):
    common = {
        "tcp_autocorking": 0,
        "tcp_comp_sack_nr": 0,
        "tcp_frto": 0,
        "tcp_no_metrics_save": 1,
        "tcp_rmem": "4096 4194304 6291456",
        "tcp_wmem": "4096 4194304 4194304",
    }
    for key, value in (common | sysctls).items():
        if key in ("congestion", "marked"):
            continue
        with open(f"/proc/sys/net/ipv4/{key}", "w") as file:
            file.write(str(value))


def outstanding(connection):
    count = array.array("i", [0])
    fcntl.ioctl(connection, SIOCOUTQ, count)
    return count[0]


def mark(packet):
    """Sets the codepoint of congestion (RFC 3168) and the checksum of the header."""
    packet[1] |= 3
    packet[10:12] = b"\0\0"
    total = sum(struct.unpack(f">{(packet[0] & 15) * 2}H", packet[: (packet[0] & 15) * 4]))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    packet[10:12] = struct.pack(">H", ~total & 0xFFFF)


class Link:
    """Forwards between the devices, with delay and losses."""

    def __init__(self, devices, listener, drops, marks):
        self.devices, self.drops, self.marks = devices, set(drops), set(marks)
        self.listener, self.receiver = listener, None
        self.waiting = []
        self.data = 0
        self.first = self.start = None
        self.trace = []

    def step(self):
        now = time.monotonic()
        while self.waiting and self.waiting[0][0] <= now:
            _, to, packet = self.waiting.pop(0)
            os.write(self.devices[to], packet)
            self.read()
        # A timer may be late by a tick, so the wait for a packet's time is a busy one.
        wait = 0 if self.waiting else 0.005
        for device in select.select(self.devices, [], [], wait)[0]:
            packet = bytearray(os.read(device, 65536))
            source = self.devices.index(device)
            if packet[0] >> 4 == 4 and packet[9] == 6 and not self.is_dropped(source, packet):
                self.waiting.append((time.monotonic() + DELAY, 1 - source, packet))

    def read(self):
        """Reads what has come, in the thread that forwards: beside it, segments would be joined."""
        try:
            if self.receiver is None:
                self.receiver, _ = self.listener.accept()
                self.receiver.setblocking(False)
            self.receiver.recv(1 << 20)
        except BlockingIOError:
            pass

    def is_dropped(self, source, packet):
        ip = (packet[0] & 15) * 4
        (seq,) = struct.unpack_from(">I", packet, ip + 4)
        length = struct.unpack_from(">H", packet, 2)[0] - ip - (packet[ip + 12] >> 4) * 4
        if source != 0 or length == 0:
            return False
        now = time.monotonic()
        if self.first is None:
            self.first, self.start = seq, now
        self.data += 1
        offset = (seq - self.first) & 0xFFFFFFFF
        self.trace.append((round((now - self.start) * 1e6), offset // 1000, length))
        if self.data in self.marks and packet[1] & 3:
            mark(packet)
        return self.data in self.drops


def record(name, segments, drops, sysctls):
    # The receiver's namespace lives as long as its device and sockets.
    own_network()
    configure(sysctls)
    peer = tun("tcp1", RECEIVER, SENDER, sysctls)
    listener = socket.create_server((RECEIVER, 7))
    listener.setblocking(False)
    own_network()
    configure(sysctls)
    device = tun("tcp0", SENDER, RECEIVER, sysctls)
    link = Link([device, peer], listener, drops, map(int, sysctls.get("marked", "").split()))
    connection = socket.socket()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # As a sysctl of a namespace only unrestricted ones are allowed.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, sysctls["congestion"].encode())
    connection.setblocking(False)
    try:
        connection.connect((RECEIVER, 7))
    except BlockingIOError:
        pass
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        link.step()
    assert connection.send(bytes(1000 * segments)) == 1000 * segments
    end = time.monotonic() + 60
    while outstanding(connection) and time.monotonic() < end:
        link.step()
    assert not outstanding(connection), f"{name}: it does not end"
    with open(os.path.join(HERE, f"{name}.txt"), "w") as file:
        file.write(f"# Linux {platform.release().split('-')[0]}: {segments} segments of 1000 bytes\n")
        file.write(f"segments {segments}\n")
        file.write(f"dropped {' '.join(map(str, drops))}\n")
        for key, value in sysctls.items():
            file.write(f"{key} {value}\n")
        file.write("# microseconds, number of the segment\n")
        for at, number, length in link.trace:
            assert length == 1000, length
            file.write(f"{at} {number}\n")


for scenario in scenarios():
    if not sys.argv[1:] or scenario[0] in sys.argv[1:]:
        child = os.fork()
        if child == 0:
            record(*scenario)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(scenario[0], "recorded" if status == 0 else "FAILED")
