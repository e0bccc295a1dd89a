"""Memory of the other machines in the rack, for programs that request it.

    import venice

    with venice.connect() as rack, rack.get_memory("1GiB") as memory:
        memory.write(4096, b"far away")
        assert memory.read(4096, 8) == b"far away"

See docs/reference/api.md. Handles are void in a child of `fork`; use the "spawn" method of
`multiprocessing`.
"""

from ._venice import __version__
from .cache import CacheStats, ObjectCache
from .copies import Copies
from .device import Device, Leaving
from .errors import (
    Closed,
    DeviceLost,
    DonorLost,
    Error,
    Invalid,
    NoRoom,
    OutOfRange,
    Refused,
    Unaligned,
    Unreachable,
)
from .memory import Memory
from .paged import Hint, Paged, advise
from .rack import Rack, connect
from .sizes import parse_size

__all__ = [
    "CacheStats",
    "Closed",
    "Copies",
    "Device",
    "DeviceLost",
    "DonorLost",
    "Error",
    "Hint",
    "Invalid",
    "Leaving",
    "Memory",
    "NoRoom",
    "ObjectCache",
    "OutOfRange",
    "Paged",
    "Rack",
    "Refused",
    "Unaligned",
    "Unreachable",
    "__version__",
    "advise",
    "connect",
    "parse_size",
]
