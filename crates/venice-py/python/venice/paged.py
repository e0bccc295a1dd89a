"""Arrays larger than what is resident of them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Literal

from . import _venice
from .closing import Closing
from .copies import Copies
from .errors import Invalid, Refused
from .sizes import Size, parse_size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

Shape = int | tuple[int, ...]
Hint = Literal["normal", "sequential", "random", "willneed", "cold", "pageout"]


class Paged(Closing):
    """Borrowed memory for arrays, of which a budget is resident, however many they are.

    It is given back when this is closed and the last array (and view of one) is gone.
    """

    def __init__(self, inner: "_venice.Paged") -> None:
        self._inner = inner

    def close(self) -> None:
        """No more arrays from here; those there are stay as long as they are used."""
        self._inner.close()

    @property
    def closed(self) -> bool:
        """Was it closed?"""
        return self._inner.is_closed()

    @property
    def copies(self) -> Copies:
        """How many copies there are of it on different nodes, and what is missing just now."""
        return Copies(*self._inner.copies())

    @property
    def capacity_bytes(self) -> int:
        """What all arrays together may be."""
        return self._inner.capacity_bytes()

    @property
    def mapped_bytes(self) -> int:
        """What they are, each in whole pages."""
        return self._inner.mapped_bytes()

    @property
    def resident_bytes(self) -> int:
        """How much of them is in this machine's memory."""
        return self._inner.resident_bytes()

    @property
    def local_bytes(self) -> int:
        """How much of them may be, all together."""
        return self._inner.local_bytes()

    def set_local(self, local: Size) -> None:
        """Another budget for the arrays while they are in use: 4 MiB at least, 32 MiB once there were
        pages of 2 MiB. When it shrinks, what is too much leaves within the time that it takes to
        travel; this does not wait for that."""
        self._inner.set_local_bytes(parse_size(local))

    def array(
        self, shape: Shape, dtype: DTypeLike = float, *, page_size: str = "4k"
    ) -> "np.ndarray[Any, Any]":
        """An array of zeros; an ordinary `numpy.ndarray`, but for where it lies.

        It comes and goes by pages of `page_size`, "4k", "64k" or "2m": large ones are for what is
        used by runs of pages; those of 2 MiB need port shm and 32 MiB of `local`, and are what
        `venice doctor` tells of.
        """
        numpy = _numpy()
        kind = numpy.dtype(dtype)
        if kind.hasobject:
            raise TypeError("arrays of Python objects cannot lie in borrowed memory")
        shape = _dimensions(shape)
        region = self._inner.map(parse_size(prod(shape) * kind.itemsize), page_size)
        array: np.ndarray[Any, Any] = numpy.ndarray(shape, kind, buffer=region)
        return array


def advise(array: "np.ndarray[Any, Any]", hint: Hint) -> None:
    """Says how an array in borrowed memory, or a view of a part of it, will be used.

    "sequential": in order, and hardly again after that. "random": anywhere next, so that nothing is
    brought in ahead. "normal": takes either back. "willneed": soon; what is far of it is brought in,
    half the budget at most. "cold": not for a while; it leaves before other memory. "pageout":
    it has left when this returns. It holds for whole pages of 4 KiB, all those that the array or view
    lies on; values are never changed.
    """
    region = _region_of(array)
    first, end = _bounds(array)
    if first < end:
        region.advise(first - region.address(), end - first, hint)


def _region_of(array: "np.ndarray[Any, Any]") -> "_venice.Region":
    """The region that an array, or what it is a view of, lies in."""
    base: Any = array
    while isinstance(base, _numpy().ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, _venice.Region):
        raise Invalid("this array is not in borrowed memory: Rack.array and Paged.array make such")
    return base


def _bounds(array: "np.ndarray[Any, Any]") -> tuple[int, int]:
    """The addresses of its first byte and behind its last, whichever way it is gone through."""
    first = end = int(array.__array_interface__["data"][0])
    if array.size == 0:
        return first, first
    for length, stride in zip(array.shape, array.strides):
        if stride < 0:
            first += (length - 1) * stride
        else:
            end += (length - 1) * stride
    return first, end + array.itemsize


def _dimensions(shape: Shape) -> tuple[int, ...]:
    dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(length < 0 for length in dimensions):
        raise Invalid(f"an array of the shape {shape}: a length is 0 at least")
    return dimensions


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise Refused("arrays need numpy: pip install numpy") from None
    return numpy


def array_bytes(shape: Shape, dtype: Any) -> int:
    """Bytes of an array, in whole pages."""
    itemsize: int = _numpy().dtype(dtype).itemsize
    return -(-max(prod(_dimensions(shape)) * itemsize, 1) // 4096) * 4096
