"""Arrays larger than their resident part."""

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
    """Borrowed memory for arrays, with one budget of resident bytes for all of them.

    It is given back when this is closed and the last array (and view of one) is gone.
    """

    def __init__(self, inner: "_venice.Paged") -> None:
        self._inner = inner

    def close(self) -> None:
        """Ends the creation of arrays; existing ones stay as long as they are used."""
        self._inner.close()

    @property
    def closed(self) -> bool:
        """True if it was closed."""
        return self._inner.is_closed()

    @property
    def copies(self) -> Copies:
        """The required copies on different nodes, and the missing ones at present."""
        return Copies(*self._inner.copies())

    @property
    def capacity_bytes(self) -> int:
        """The maximum bytes of all arrays together."""
        return self._inner.capacity_bytes()

    @property
    def mapped_bytes(self) -> int:
        """The bytes of all arrays, each in whole pages."""
        return self._inner.mapped_bytes()

    @property
    def resident_bytes(self) -> int:
        """Their resident bytes."""
        return self._inner.resident_bytes()

    @property
    def local_bytes(self) -> int:
        """The budget: the bytes of all arrays that may be resident."""
        return self._inner.local_bytes()

    def set_local(self, local: Size) -> None:
        """Changes the budget while the arrays are in use: at least 4 MiB, 32 MiB once there were
        pages of 2 MiB. When it shrinks, excess pages are evicted as fast as they travel; this does
        not wait for that."""
        self._inner.set_local_bytes(parse_size(local))

    def array(
        self, shape: Shape, dtype: DTypeLike = float, *, page_size: str = "4k"
    ) -> "np.ndarray[Any, Any]":
        """Returns an array of zeros: an ordinary `numpy.ndarray` in borrowed memory.

        It is paged in pages of `page_size`, "4k", "64k" or "2m". Large ones suit data used by runs
        of pages; those of 2 MiB require port shm and 32 MiB of `local` (`venice doctor` checks the
        kernel).
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
    """Advises on the future use of an array in borrowed memory, or of a view of it.

    "sequential": in order, and hardly again after that. "random": in no order, without prefetch.
    "normal": revokes either. "willneed": soon; its far pages are brought in, up to half the budget.
    "cold": not for a while; it is evicted before other memory. "pageout": it is evicted when this
    returns. The advice holds for whole pages of 4 KiB, all those the array or view touches; values
    never change.
    """
    region = _region_of(array)
    first, end = _bounds(array)
    if first < end:
        region.advise(first - region.address(), end - first, hint)


def _region_of(array: "np.ndarray[Any, Any]") -> "_venice.Region":
    """Returns the region of an array or of the base of a view."""
    base: Any = array
    while isinstance(base, _numpy().ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, _venice.Region):
        raise Invalid("array not in borrowed memory: make it by Rack.array or Paged.array")
    return base


def _bounds(array: "np.ndarray[Any, Any]") -> tuple[int, int]:
    """Returns the addresses of its first byte and behind its last, for any sign of its strides."""
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
        raise Invalid(f"invalid shape {shape}: a length must be at least 0")
    return dimensions


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise Refused("arrays need numpy: pip install numpy") from None
    return numpy


def array_bytes(shape: Shape, dtype: Any) -> int:
    """Returns the bytes of an array, in whole pages."""
    itemsize: int = _numpy().dtype(dtype).itemsize
    return -(-max(prod(_dimensions(shape)) * itemsize, 1) // 4096) * 4096
