"""Channels between two programs: messages, streams, and registered memory, without a rack."""

from typing import Any, Literal

from . import _venice
from .closing import Closing
from .sizes import parse_size

Buffer = Any
"""Any object with contiguous bytes."""

Kind = Literal["messages", "stream", "adaptive"]


def new_key() -> str:
    """Draws a key for both ends of a channel: 64 hexadecimal digits."""
    return _venice.new_channel_key()


def listen(
    address: str,
    kind: Kind = "messages",
    *,
    key: str | None = None,
    plain: bool = False,
    buffer: int | str = "256KiB",
) -> "Listener":
    """Listens at `shm:PATH` or `udp:HOST:PORT`; port 0: any, see `Listener.address`.

    Over udp both ends give the same `key`, or `plain=True`. `buffer` is what may wait at each end;
    over udp it bounds the length of a message. Adaptive streams size their buffers themselves: any
    other `buffer` than the default is `Invalid`.
    """
    options = _venice.ChannelOptions(key, plain, parse_size(buffer), 10.0)
    return Listener(_venice.Listener(address, kind, options))


def connect_channel(
    address: str,
    kind: Kind = "messages",
    *,
    key: str | None = None,
    plain: bool = False,
    buffer: int | str = "256KiB",
    timeout: float = 10.0,
) -> "Channel":
    """Connects to the listener at `address`, within `timeout` seconds. Both name the same kind:

    `messages` and `stream` go both ways; of `adaptive`, a stream by whichever of CRMA, RDMA and
    QPair is measured best, the connecting end writes.
    """
    options = _venice.ChannelOptions(key, plain, parse_size(buffer), timeout)
    return Channel(_venice.Channel(address, kind, options))


def lend(
    address: str, size: int | str, *, key: str | None = None, plain: bool = False
) -> "LentRegion":
    """Lends `size` bytes of zeros, rounded up to 16 MiB, to other programs.

    `address` is `shm:PATH`, `udp:HOST:PORT`, or `verbs:HOST:PORT` with `plain=True`.
    """
    options = _venice.ChannelOptions(key, plain, 256 << 10, 10.0)
    return LentRegion(_venice.LentRegion(address, parse_size(size), options))


def connect_region(
    address: str,
    size: int | str,
    *,
    key: str | None = None,
    plain: bool = False,
    timeout: float = 10.0,
) -> "RemoteRegion":
    """Connects to the first `size` bytes, a multiple of 16 MiB, that another program lends, within
    `timeout` seconds."""
    options = _venice.ChannelOptions(key, plain, 256 << 10, timeout)
    return RemoteRegion(_venice.RemoteRegion(address, parse_size(size), options))


class Listener(Closing):
    """A listener; closed by `close()` or `with`. Any threads may accept at the same time, while one
    polls."""

    def __init__(self, inner: "_venice.Listener") -> None:
        self._inner = inner

    @property
    def address(self) -> str:
        """Its address, with the port that the system chose."""
        return self._inner.address()

    def accept(self, timeout: float | None = None) -> "Channel":
        """Accepts the next channel. `None`: no limit; 0: `WouldBlock` if none waits."""
        return Channel(self._inner.accept(timeout))

    def fileno(self) -> int:
        """The descriptor to poll for input after `arm()`."""
        return self._inner.fileno()

    def arm(self) -> bool:
        """Prepares to poll. `False`: accept first, do not wait."""
        return self._inner.arm()

    def close(self) -> None:
        """Stops listening; accepted channels stay."""
        self._inner.close()

    @property
    def closed(self) -> bool:
        """True if it was closed, or belongs to the parent process of a fork."""
        return self._inner.is_closed()


class Channel(Closing):
    """One end of a connection; closed by `close()` or `with`. Any threads may send and
    receive at the same time. In a child of `fork` it is `Closed`."""

    def __init__(self, inner: "_venice.Channel") -> None:
        self._inner = inner

    def settimeout(self, timeout: float | None) -> None:
        """Sets the longest wait of a call (`TimedOut`); 0: calls do not wait (`WouldBlock`)."""
        self._inner.set_timeout(timeout)

    def send(self, message: Buffer) -> None:
        """Sends a message of one byte or more."""
        self._inner.send(message)

    def recv(self) -> bytes | None:
        """Returns the next message; `None`: the other side has ended its sending."""
        return self._inner.recv()

    def recv_into(self, buffer: Buffer) -> int:
        """Receives the next message into `buffer`; returns its length, 0 at the end."""
        return self._inner.recv_into(buffer)

    def write(self, data: Buffer) -> int:
        """Writes the front of `data` to a stream; returns how much."""
        return self._inner.write(data)

    def write_all(self, data: Buffer) -> None:
        """Writes all of `data` to a stream."""
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[self._inner.write(rest) :]

    def readinto(self, buffer: Buffer) -> int:
        """Reads what has arrived into `buffer`; returns how much, 0 at the end."""
        return self._inner.readinto(buffer)

    def read(self, size: int = 65536) -> bytes:
        """Reads what has arrived, at most `size` bytes; `b""` at the end."""
        buffer = bytearray(size)
        return bytes(memoryview(buffer)[: self._inner.readinto(buffer)])

    def shutdown(self) -> None:
        """Ends the sending: the other side gets all that was sent, then the end."""
        self._inner.shutdown()

    def fileno(self) -> int:
        """The descriptor to poll for input after `arm()`. It becomes readable when anything may
        have changed, room to send included."""
        return self._inner.fileno()

    def arm(self) -> bool:
        """Prepares to poll. `False`: repeat the call first, do not wait."""
        return self._inner.arm()

    def close(self) -> None:
        """Closes this end; what was sent still arrives."""
        self._inner.close()

    @property
    def closed(self) -> bool:
        """True if it was closed, or belongs to the parent process of a fork."""
        return self._inner.is_closed()


class LentRegion(Closing):
    """Memory of this program that others read and write, until it is closed."""

    def __init__(self, inner: "_venice.LentRegion") -> None:
        self._inner = inner

    @property
    def address(self) -> str:
        """Its address, with the port that the system chose."""
        return self._inner.address()

    def __len__(self) -> int:
        return self._inner.len_bytes()

    def read(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes from `offset` on."""
        buffer = bytearray(size)
        self._inner.readinto(offset, buffer)
        return bytes(buffer)

    def write(self, offset: int, data: Buffer) -> None:
        """Stores `data` from `offset` on."""
        self._inner.write(offset, data)

    def fetch_add(self, offset: int, add: int) -> int:
        """Adds to the little-endian number in eight bytes, which wraps around, atomically; returns
        the old value."""
        return self._inner.fetch_add(offset, add % (1 << 64))

    def compare_swap(self, offset: int, expected: int, new: int) -> int:
        """Replaces eight bytes if they equal `expected`, atomically; returns the old value. Numbers
        wrap around, like those of `fetch_add`."""
        return self._inner.compare_swap(offset, expected % (1 << 64), new % (1 << 64))

    def close(self) -> None:
        """Stops lending."""
        self._inner.close()

    @property
    def closed(self) -> bool:
        """True if it was closed, or belongs to the parent process of a fork."""
        return self._inner.is_closed()


class RemoteRegion(Closing):
    """Memory of another program. Calls raise `Disconnected` once its lender is gone."""

    def __init__(self, inner: "_venice.RemoteRegion") -> None:
        self._inner = inner

    def __len__(self) -> int:
        return self._inner.len_bytes()

    def read(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes from `offset` on."""
        buffer = bytearray(size)
        self._inner.readinto(offset, buffer)
        return bytes(buffer)

    def readinto(self, offset: int, buffer: Buffer) -> None:
        """Fills `buffer` from `offset` on."""
        self._inner.readinto(offset, buffer)

    def write(self, offset: int, data: Buffer) -> None:
        """Stores `data` from `offset` on; the lender has it when this returns."""
        self._inner.write(offset, data)

    def fetch_add(self, offset: int, add: int) -> int:
        """Adds to the little-endian number in eight bytes, which wraps around, atomically; returns
        the old value."""
        return self._inner.fetch_add(offset, add % (1 << 64))

    def compare_swap(self, offset: int, expected: int, new: int) -> int:
        """Replaces eight bytes if they equal `expected`, atomically; returns the old value. Numbers
        wrap around, like those of `fetch_add`."""
        return self._inner.compare_swap(offset, expected % (1 << 64), new % (1 << 64))

    def close(self) -> None:
        """Disconnects."""
        self._inner.close()

    @property
    def closed(self) -> bool:
        """True if it was closed, or belongs to the parent process of a fork."""
        return self._inner.is_closed()
