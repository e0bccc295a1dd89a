"""Sizes as people write them."""

import re

from .errors import Invalid

Size = int | str

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_size(size: Size) -> int:
    """Bytes of `size`: a number, or a text such as "256MiB" or "1.5GiB"."""
    if isinstance(size, int):
        if size < 0:
            raise Invalid(f"a size of {size} bytes")
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
    if match is None or match[2] not in _UNITS:
        raise Invalid(f"{size!r} is no size: write 64MiB, 1.5GiB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2]])
