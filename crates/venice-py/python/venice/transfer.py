"""Grants that change hands."""

from typing import NamedTuple

from . import _venice
from .closing import Closing
from .device import Service
from .sizes import whole


class Transferred(NamedTuple):
    """A transferred grant."""

    grant: int
    """Its number, as in `venice grants`."""
    successor: int
    """The number of its successor, of the new owner."""
    state: str
    """`transferred`, `pending` (its donor has not confirmed it yet), or `lost`."""


class Transfer(NamedTuple):
    """A transfer."""

    number: str
    """Its number, by which the new owner may claim it: 32 hexadecimal digits."""
    grants: list[Transferred]
    """Its grants, and their successors."""


class ClaimedGrant(NamedTuple):
    """A claimed grant."""

    kind: str
    """`memory`, `accelerator`, `storage` or `nic`."""
    node: str
    """Its node."""
    address: str
    """Its name on that node, for example `/dev/nvidia0`; empty for memory."""
    len_bytes: int
    """The granted bytes; for a device that is lent whole its size, 0 if unknown."""
    capabilities: list[str]
    """Its capabilities."""
    grant: int
    """The number of the grant, as in `venice grants`."""
    service: str | None
    """The name of its service; `None` without one."""


class Claimed(Closing):
    """Grants that were transferred to this user; given back by `close()` or `with`."""

    def __init__(self, inner: "_venice.Claimed") -> None:
        self._inner = inner
        self._grants = [ClaimedGrant(*row) for row in inner.grants()]

    @property
    def grants(self) -> list[ClaimedGrant]:
        """The grants, lost or not."""
        return list(self._grants)

    def open_service(self, index: int, timeout: float | None = None) -> Service:
        """Connects to the service of the grant with this index in `grants`; see
        `Device.open_service`."""
        return Service(self._inner.open_service(whole(index, "index"), timeout))

    @property
    def is_whole(self) -> bool:
        """True if none of the grants was lost."""
        return self._inner.is_whole()

    def close(self) -> None:
        """Gives the grants back. Repeated calls have no effect."""
        self._inner.close()

    @property
    def closed(self) -> bool:
        """True if they were given back, or belong to the parent process of a fork."""
        return self._inner.is_closed()
