"""Sizes in human-readable form."""

import re

from .errors import Invalid

Size = int | str

#: The first value beyond a signed 64-bit number.
_TOO_MUCH = 1 << 63

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_size(size: Size) -> int:
    """Returns the bytes of `size`: a number, or a text such as "256MiB" or "1.5GiB"."""
    if isinstance(size, int):
        return _bounded(size, f"a size of {size} bytes")
    if not isinstance(size, str):
        raise TypeError(f"a size is a text such as '64MiB' or a number of bytes, not {size!r}")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
    if match is None or match[2] not in _UNITS:
        raise Invalid(f"invalid size {size!r}: write 64MiB, 1.5GiB or a number of bytes")
    unit = _UNITS[match[2]]
    # Digits alone give a number of any length; a fraction is as exact as a float.
    whole = int(match[1]) * unit if match[1].isdigit() else int(float(match[1]) * unit)
    return _bounded(whole, f"a size of {size}")


def whole(value: int, name: str) -> int:
    """Checks that the argument `name` is a whole number, not negative; returns it."""
    return _bounded(value, f"{name}={value}")


def _bounded(value: int, what: str) -> int:
    if not 0 <= value < _TOO_MUCH:
        raise Invalid(f"{what} is out of range: 0 to 2**63 - 1")
    return value
