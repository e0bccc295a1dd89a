"""Borrowed memory, read and written by offset."""

from concurrent.futures import Future, InvalidStateError
import asyncio
from typing import Any, Callable

from . import _venice
from .closing import Closing
from .copies import Copies
from .device import Device
from .errors import OutOfRange

#: Any object with contiguous bytes: bytes, bytearray, memoryview, a numpy array, ...
Buffer = Any



def _flat(data: Buffer) -> memoryview:
    """Returns the bytes of `data`, which must be contiguous."""
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


class Memory(Closing):
    """Bytes `0` to `len(memory) - 1`, zeros at first; given back by `close()` or `with`.

    Any thread may use it, and the interpreter's lock is released during an access.
    """

    def __init__(self, inner: "_venice.Memory", devices: list[Device]) -> None:
        self._inner = inner
        self._devices = devices

    def __len__(self) -> int:
        return self._inner.len_bytes()

    def __repr__(self) -> str:
        return f"<venice.Memory, {'closed' if self.closed else f'{len(self)} bytes'}>"

    def close(self) -> None:
        """Gives the memory back, once outstanding accesses have completed. Repeated calls have no
        effect."""
        self._inner.close()

    @property
    def closed(self) -> bool:
        """True if it was given back."""
        return self._inner.is_closed()

    @property
    def devices(self) -> list[Device]:
        """The devices granted with it, in the order of the wants; `close()` leaves them."""
        return list(self._devices)

    @property
    def copies(self) -> Copies:
        """The required copies on different nodes, and the missing ones at present."""
        return Copies(*self._inner.copies())

    def read(self, offset: int, len_bytes: int) -> bytes:
        """Returns the bytes from `offset` on."""
        self._check(offset, len_bytes)
        return self._inner.read(offset, len_bytes)

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fills `buffer`, any object with contiguous writable bytes, from `offset` on."""
        self._check(offset)
        self._inner.read_into(offset, _flat(buffer))

    def write(self, offset: int, data: Buffer) -> None:
        """Stores `data` at `offset`; it is stored when this returns."""
        self._check(offset)
        self._inner.write(offset, _flat(data))

    def __getitem__(self, key: slice) -> bytes:
        """Reads `memory[4096:8192]`."""
        start, stop = self._range(key)
        return self.read(start, stop - start)

    def __setitem__(self, key: slice, data: Buffer) -> None:
        """Writes `memory[4096:8192] = data`, of that length."""
        start, stop = self._range(key)
        flat = _flat(data)
        if flat.nbytes != stop - start:
            raise ValueError(f"lengths differ: {flat.nbytes} bytes for a slice of {stop - start}")
        self.write(start, flat)

    def submit_read(self, offset: int, len_bytes: int) -> "Future[bytes]":
        """Starts to read. Asynchronous accesses take effect in the order in which they were started;
        the call waits while `most_under_way` of them are outstanding."""
        self._check(offset, len_bytes)
        return self._submit(lambda done: self._inner.start_read(offset, len_bytes, done))

    def submit_write(self, offset: int, data: Buffer) -> "Future[None]":
        """Starts to write; `data` may be changed when this returns. See `submit_read`."""
        self._check(offset)
        return self._submit(lambda done: self._inner.start_write(offset, _flat(data), done))

    async def read_async(self, offset: int, len_bytes: int) -> bytes:
        """Like `read`, awaited."""
        return await asyncio.wrap_future(self.submit_read(offset, len_bytes))

    async def write_async(self, offset: int, data: Buffer) -> None:
        """Like `write`, awaited."""
        await asyncio.wrap_future(self.submit_write(offset, data))

    def flush(self) -> None:
        """Waits until every access started before has completed."""
        self._inner.flush()

    def fetch_add(self, offset: int, add: int) -> int:
        """Adds to the eight bytes at `offset`, a little-endian number that wraps around, in one
        step; returns the previous value."""
        self._check(offset)
        return self._inner.fetch_add(offset, add % (1 << 64))

    def compare_swap(self, offset: int, expected: int, new: int) -> int:
        """Stores `new` in the eight bytes at `offset` if they equal `expected`, in one step; returns
        the previous value. Numbers wrap around, like those of `fetch_add`."""
        self._check(offset)
        return self._inner.compare_swap(offset, expected % (1 << 64), new % (1 << 64))

    def _check(self, offset: int, len_bytes: int = 0) -> None:
        """Rejects numbers beyond any memory, which do not fit the native call."""
        if not (0 <= offset < 1 << 63 and 0 <= len_bytes < 1 << 63):
            raise OutOfRange(f"out of range: bytes {offset}+{len_bytes} of {len(self)}")

    def _range(self, key: slice) -> tuple[int, int]:
        if not isinstance(key, slice) or key.step not in (None, 1):
            raise TypeError("borrowed memory is accessed by slices without a step")
        start, stop, _ = key.indices(len(self))
        return start, max(start, stop)

    def _submit(self, start: Callable[[Callable[..., None]], None]) -> "Future[Any]":
        future: Future[Any] = Future()

        def done(value: bytes | None, error: BaseException | None) -> None:
            try:
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(error)
            except InvalidStateError:
                pass  # cancelled: the outcome is discarded

        start(done)
        return future
