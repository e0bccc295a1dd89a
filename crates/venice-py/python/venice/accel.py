"""Accelerators that run tasks: one, or several together.

    import numpy
    import venice

    arrays = [numpy.ones(1 << 19, numpy.complex64) for _ in range(64)]
    with venice.accel.Pool(3, needs="fft") as pool:
        spectra = pool.map(venice.accel.Kernel("fft", 1024), arrays)

    source = "kernel void twice(global const float *in, global float *out) {" \
        " size_t at = get_global_id(0); out[at] = 2 * in[at]; }"
    floats = [numpy.arange(1 << 20, dtype=numpy.float32) for _ in range(64)]
    with venice.accel.Pool(3, needs="opencl") as pool:
        doubled = pool.map(venice.accel.Kernel("twice", source=source), floats)
"""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _venice
from .closing import Closing
from .errors import Invalid

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from .rack import Rack

_ALL = 2**64 - 1


class Input:
    """An argument: a range of the input, by default all of it."""

    def __init__(self, offset: int = 0, bytes: int | None = None) -> None:
        self._argument = (2, b"", offset, _ALL if bytes is None else bytes)


class Output:
    """An argument: a range of the output, by default all of it."""

    def __init__(self, offset: int = 0, bytes: int | None = None) -> None:
        self._argument = (3, b"", offset, _ALL if bytes is None else bytes)


class Local:
    """An argument: memory of a work-group."""

    def __init__(self, bytes: int) -> None:
        self._argument = (4, b"", 0, bytes)


_Argument = int | float | bytes | Input | Output | Local


class Kernel:
    """What an accelerator runs: the built-in function `name`, or the kernel of that name in `source`
    (OpenCL C), `spirv`, or `binary`.

    An argument is an int (eight bytes), a float (four), bytes, or a range. A kernel without arguments
    gets the input and the output. `dtype` is the type of the output; by default that of the input, and
    float64 for the function `sum`.

    `global_size` is the number of work items in each of up to three dimensions. Without it there is one
    for every `item_bytes` of the input: by default for every element of numpy arrays, else for every
    four bytes. `local_size` is that of a work-group; without it the device chooses.
    """

    def __init__(
        self,
        name: str,
        *arguments: _Argument,
        source: str | None = None,
        spirv: bytes | None = None,
        binary: bytes | None = None,
        options: str = "",
        global_size: Sequence[int] = (),
        local_size: Sequence[int] = (),
        item_bytes: int | None = None,
        dtype: "DTypeLike | None" = None,
    ) -> None:
        codes: list[tuple[int, bytes]] = []
        codes += [] if source is None else [(2, source.encode())]
        codes += [] if spirv is None else [(3, bytes(spirv))]
        codes += [] if binary is None else [(4, bytes(binary))]
        if len(codes) > 1:
            raise Invalid("invalid kernel: give one of source, spirv and binary")
        self.name = name
        self.dtype = "float64" if dtype is None and name == "sum" and not codes else dtype
        if codes and not arguments:
            arguments = (Input(), Output())
        self._code = codes[0] if codes else (1, b"")
        self._options = options
        self._sizes = (_three(global_size), _three(local_size))
        self._item_bytes = item_bytes
        self._arguments = [_argument(argument) for argument in arguments]

    def _for(self, arrays: Sequence[Any]) -> Any:
        """What runs on these arrays."""
        one_each, local_size = self._sizes
        if self._code[0] != 1 and not any(one_each):
            first = arrays[0] if arrays else b""
            width = int(first.itemsize) if _is_numpy(first) else 4
            one_each = (0, width if self._item_bytes is None else self._item_bytes, 0)
        return _venice.Kernel(
            self._code, self.name, self._options, one_each, local_size, self._arguments
        )

    def __repr__(self) -> str:
        return f"<venice.accel.Kernel {self.name}>"


class Pool(Closing):
    """Accelerators that run tasks together; given back by `close()` or `with`.

    `Pool(3, needs="fft")` gets three from the rack with all these capabilities, separated by commas.
    `Pool()` opens those that the program was started with: `venice get accelerator:fft=3 -- python3
    program.py`.

    Each accelerator has two tasks in flight: one is transferred while the other runs. A task whose
    accelerator is lost runs on another one.
    """

    def __init__(
        self, count: int | None = None, needs: str = "", *, rack: "Rack | None" = None
    ) -> None:
        if count is None:
            self._inner = _venice.Pool(None, 0, "")
            return
        inner = _venice.connect(None) if rack is None else rack._inner
        self._inner = _venice.Pool(inner, count, needs)

    def __repr__(self) -> str:
        how = "closed" if self.closed else f"{len(self)} accelerators"
        return f"<venice.accel.Pool, {how}>"

    def __len__(self) -> int:
        """The number of accelerators that are not lost."""
        return self._inner.size()

    @property
    def lost(self) -> list[tuple[str, str]]:
        """Node and reason of each lost accelerator."""
        return self._inner.lost()

    def map(self, kernel: Kernel | str, arrays: Sequence[Any]) -> list[Any]:
        """Runs the kernel on each array, and returns the outputs in order: numpy arrays for numpy
        arrays, else `bytes`. The arrays must not change meanwhile.

        `TaskFailed`: a task failed, and no more were started. `DeviceLost`: all accelerators are
        lost. `KeyboardInterrupt`, or what another signal handler raises, ends it; tasks that run go
        on, and the next call waits for them."""
        kernel = Kernel(kernel) if isinstance(kernel, str) else kernel
        inputs = [_bytes_of(array) for array in arrays]
        inner = kernel._for(arrays)
        outputs = [_room(inner.output_bytes(len(it))) for it in inputs]
        places = [memoryview(output) for output in outputs]
        lengths = self._inner.map(inner, inputs, places)
        results = zip(arrays, outputs, lengths, strict=True)
        return [_result(kernel, array, output, length) for array, output, length in results]

    def close(self) -> None:
        """Gives the accelerators back. Repeated calls have no effect."""
        self._inner.close()

    @property
    def closed(self) -> bool:
        """True if it was closed."""
        return self._inner.is_closed()


def _room(bytes: int) -> bytearray:
    try:
        return bytearray(bytes)
    except (MemoryError, OverflowError):
        raise Invalid(f"an output of {bytes} bytes: accelerators return at most 16 MiB") from None


def _three(sizes: Sequence[int]) -> tuple[int, int, int]:
    if isinstance(sizes, int):
        raise Invalid(f"invalid size {sizes}: give a sequence, as ({max(sizes, 1)},)")
    if len(sizes) > 3:
        raise Invalid("invalid size: at most three dimensions")
    one, two, three = (*sizes, 0, 0, 0)[:3]
    return (one, two, three)


def _argument(argument: _Argument) -> tuple[int, bytes, int, int]:
    if isinstance(argument, int):
        return (1, struct.pack("<Q", argument), 0, 0)
    if isinstance(argument, float):
        return (1, struct.pack("<f", argument), 0, 0)
    if isinstance(argument, (bytes, bytearray)):
        return (1, bytes(argument), 0, 0)
    return argument._argument


def _is_numpy(array: Any) -> bool:
    return hasattr(array, "__array_interface__")


def _bytes_of(array: Any) -> memoryview:
    if _is_numpy(array):
        import numpy

        # Complex numbers have no format that a memoryview casts.
        return numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8).data
    return memoryview(array).cast("B")


def _result(kernel: Kernel, array: Any, output: bytearray, length: int) -> Any:
    if not _is_numpy(array):
        return bytes(output[:length])
    import numpy

    dtype = numpy.dtype(array.dtype if kernel.dtype is None else kernel.dtype)
    numbers = numpy.frombuffer(memoryview(output)[:length], dtype)
    return numbers.reshape(array.shape) if numbers.size == array.size else numbers
