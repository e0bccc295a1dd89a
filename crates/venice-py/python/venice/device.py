"""Granted devices of the rack."""

from typing import NamedTuple

from . import _venice
from .closing import Closing


class Leaving(NamedTuple):
    """A reclaim or preemption of a device."""

    why: str
    """The reason, in words."""
    within_s: float | None
    """Seconds until the grant ends; `None`: its node waits."""


class Device(Closing):
    """An accelerator, storage or a network card of another node; given back by `close()` or `with`.

    A program reaches its data by its service (`open_service`); a device without one is only reserved.
    """

    def __init__(self, inner: "_venice.Device") -> None:
        self._inner = inner
        self._description = inner.description()

    def __repr__(self) -> str:
        how = "closed" if self.closed else self.kind
        return f"<venice.Device {self.address} of {self.node}, {how}>"

    @property
    def kind(self) -> str:
        """`accelerator`, `storage` or `nic`."""
        return self._description[0]

    @property
    def node(self) -> str:
        """Its node."""
        return self._description[1]

    @property
    def address(self) -> str:
        """Its name on that node, for example `/dev/nvidia0`."""
        return self._description[2]

    @property
    def len_bytes(self) -> int:
        """The granted bytes of storage; for other devices their size, 0 if unknown."""
        return self._description[3]

    @property
    def capabilities(self) -> list[str]:
        """Its capabilities."""
        return list(self._description[4])

    @property
    def grant(self) -> int:
        """The number of its grant, as in `venice grants`."""
        return self._description[5]

    @property
    def service(self) -> str | None:
        """The name of its service; `None`: the program uses the device by itself."""
        return self._inner.service()

    def open_service(self, timeout: float | None = None) -> "Service":
        """Connects to its service; each call waits at most `timeout` seconds, more than 0; `None`:
        without limit. `Invalid`: it has none, or for other seconds."""
        return Service(self._inner.open_service(timeout))

    @property
    def leaving(self) -> Leaving | None:
        """Its reclaim or preemption, if there is one at present: close it in time."""
        leaving = self._inner.leaving()
        return None if leaving is None else Leaving(*leaving)

    def check(self) -> None:
        """Raises `DeviceLost` if its node is gone or has taken it back."""
        self._inner.check()

    def close(self) -> None:
        """Gives the device back. Repeated calls have no effect."""
        self._inner.close()

    @property
    def closed(self) -> bool:
        """True if it was given back."""
        return self._inner.is_closed()


class Service(Closing):
    """A connection to a device's service: a process beside the device that ends with the grant."""

    def __init__(self, inner: "_venice.Service") -> None:
        self._inner = inner

    def call(self, operation: int, request: bytes = b"") -> tuple[int, bytes]:
        """Sends one request and returns the code and the bytes of its answer; both numbers are the
        service's, code 0 means done. `TimedOut`, `Disconnected`: close the connection."""
        return self._inner.call(operation, request)

    def close(self) -> None:
        """Closes the connection. Repeated calls have no effect."""
        self._inner.close()

    @property
    def closed(self) -> bool:
        """True if it was closed."""
        return self._inner.is_closed()
