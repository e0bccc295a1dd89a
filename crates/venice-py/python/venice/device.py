"""Devices of the rack, held."""

from typing import NamedTuple

from . import _venice
from .closing import Closing


class Leaving(NamedTuple):
    """A device's node wants it back."""

    why: str
    """In words."""
    within_s: float | None
    """Seconds that it is still held; `None`: its node waits."""


class Device(Closing):
    """An accelerator, storage or a network card of another node; given back by `close()` or `with`.

    The grant holds the device and no more: how its data is reached from here is the holder's
    business.
    """

    def __init__(self, kind: str, inner: "_venice.Device") -> None:
        self._kind = kind
        self._inner = inner
        self._said = inner.said()

    def __repr__(self) -> str:
        how = "closed" if self.closed else self.kind
        return f"<venice.Device {self.address} of {self.node}, {how}>"

    @property
    def kind(self) -> str:
        """`accelerator`, `storage` or `nic`."""
        return self._kind

    @property
    def node(self) -> str:
        """The node it is on."""
        return self._said[0]

    @property
    def address(self) -> str:
        """Its name there, for example `/dev/nvidia0`."""
        return self._said[1]

    @property
    def len_bytes(self) -> int:
        """Of storage how much was granted; of others their size, 0 where nobody knows."""
        return self._said[2]

    @property
    def capabilities(self) -> list[str]:
        """What it can do."""
        return list(self._said[3])

    @property
    def grant(self) -> int:
        """The grant's number, as in `venice grants`."""
        return self._said[4]

    @property
    def leaving(self) -> Leaving | None:
        """Whether its node wants it back, as for a request of higher priority: close it in time."""
        said = self._inner.leaving()
        return None if said is None else Leaving(*said)

    def check(self) -> None:
        """Raises `DeviceLost` if its node is gone or has taken it back: it may be another's."""
        self._inner.check()

    def close(self) -> None:
        """Gives the device back. Again: nothing."""
        self._inner.close()

    @property
    def closed(self) -> bool:
        """Was it given back?"""
        return self._inner.is_closed()
