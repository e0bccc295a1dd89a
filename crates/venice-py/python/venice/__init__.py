"""Memory of the other machines in the rack, for programs that request it.

    import venice

    with venice.connect() as rack, rack.get_memory("1GiB") as memory:
        memory.write(4096, b"far away")
        assert memory.read(4096, 8) == b"far away"

See docs/reference/api.md. Handles are void in a child of `fork`; use the "spawn" method of
`multiprocessing`.
"""

from . import accel, sim
from ._venice import __version__
from .cache import CacheStats, ObjectCache
from .channel import (
    Channel,
    LentRegion,
    Listener,
    RemoteRegion,
    connect_channel,
    connect_region,
    lend,
    listen,
    new_key,
)
from .copies import Copies
from .device import Device, Leaving, Service
from .errors import (
    Closed,
    DeviceLost,
    Disconnected,
    DonorLost,
    Error,
    Invalid,
    NoRoom,
    OutOfRange,
    Refused,
    TaskFailed,
    TimedOut,
    Unaligned,
    Unreachable,
    WouldBlock,
)
from .memory import Memory
from .paged import Hint, Paged, advise
from .rack import Rack, connect
from .sizes import parse_size
from .transfer import Claimed, ClaimedGrant, Transfer, Transferred

__all__ = [
    "CacheStats",
    "Channel",
    "Claimed",
    "ClaimedGrant",
    "Closed",
    "Copies",
    "Device",
    "DeviceLost",
    "Disconnected",
    "DonorLost",
    "Error",
    "Hint",
    "Invalid",
    "Leaving",
    "LentRegion",
    "Listener",
    "Memory",
    "NoRoom",
    "ObjectCache",
    "OutOfRange",
    "Paged",
    "Rack",
    "Refused",
    "RemoteRegion",
    "Service",
    "TaskFailed",
    "TimedOut",
    "Transfer",
    "Transferred",
    "Unaligned",
    "Unreachable",
    "WouldBlock",
    "__version__",
    "accel",
    "advise",
    "connect",
    "connect_channel",
    "connect_region",
    "lend",
    "listen",
    "new_key",
    "parse_size",
    "sim",
]
