"""The entry point: a rack, and its resources."""

from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterable, Literal, Self

from . import _venice
from .cache import ObjectCache
from .device import Device
from .errors import Invalid
from .memory import Memory
from .paged import Paged, Shape, array_bytes
from .sizes import Size, parse_size, whole
from .transfer import Claimed, Transfer, Transferred

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

Port = Literal["shm", "udp", "verbs"]
Placement = Literal["nearest", "spread", "pack"]
RECLAIM_TO = "donors,local"


class Rack:
    """A rack. Leaving its `with` block disconnects; borrowed memory stays until it is closed."""

    def __init__(self, inner: "_venice.Rack") -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"<venice.Rack at {self.monitor}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    @property
    def monitor(self) -> str:
        """`host:port` of its Monitor Node."""
        return self._inner.monitor()

    def free_bytes(self) -> int:
        """Returns the free bytes of its nodes."""
        return self._inner.free_bytes()

    def get_memory(
        self,
        size: Size,
        *,
        donors: Iterable[str] = (),
        copies: int | None = None,
        placement: Placement | None = None,
        bandwidth_bps: int = 0,
        reclaim_to: str = RECLAIM_TO,
        port: Port | None = None,
        node: str | None = None,
        wait_s: float = 0,
        priority: int = 100,
        preempt: bool = False,
        purpose: str = "python",
        most_under_way: int = 256,
        devices: Iterable[str] = (),
    ) -> Memory:
        """Borrows memory, in whole slabs of 16 MiB.

        `donors`: nodes to borrow from; default: any. `copies`: copies of each slab, on different
        nodes, 1 to 3; default: two, or one if the rack has no room for two. With one, a node that
        dies loses what it holds (`Memory.copies` returns the result). `placement`: order of the
        nodes: nearest (near ones with much left), spread (evenly) or pack (as few as possible);
        default: the rack's. `bandwidth_bps`: traffic the links to the nodes must carry, evenly over
        the memory, in bits per second; a node grants no more than its link has left; 0:
        unspecified. `reclaim_to`: destinations of memory that a node reclaims, in order: donors
        (other nodes), local (this machine's memory, as far as it is available), disk (files in
        /var/tmp) or disk:DIR. `port`: port to the donors; default: that of this machine's rack,
        otherwise udp. `node`: this program's node, where nodes relay for each other. `wait_s`:
        seconds to wait at most if there is no room. `priority`: of a waiting request, higher ones
        first, 0 to 255, above 100 for administrators. `preempt`: while waiting, preempt grants of
        lower priority: one's own, for administrators any user's. `purpose`: shown by
        `venice grants`. `most_under_way`: most asynchronous accesses outstanding. `devices`: wants
        of devices to get with the memory (`get_device`): both or nothing, and the memory near them;
        `Memory.devices` lists them.
        """
        under_way = whole(most_under_way, "most_under_way")
        waiting = (wait_s, priority, preempt)
        where = (placement, bandwidth_bps, reclaim_to)
        wants = " ".join(devices)
        how = _options(donors, port, node, purpose, under_way, copies, waiting, where, wants)
        memory, granted = self._inner.get_memory(parse_size(size), how)
        return Memory(memory, [Device(inner) for inner in granted])

    def get_device(
        self,
        want: str,
        *,
        donors: Iterable[str] = (),
        wait_s: float = 0,
        priority: int = 100,
        preempt: bool = False,
        purpose: str = "python",
    ) -> Device:
        """Gets one device. `want` is `KIND[:CAPABILITY,...][=SIZE]`: "accelerator:cuda",
        "nic:25Gbps", or "storage=20GiB" of one device, in whole MiB; for a device that is lent whole
        SIZE is the least that will do. Raises `NoRoom` if no suitable one is free after a wait of
        `wait_s` seconds. `priority`, `preempt`: see `get_memory`; `Device.leaving` reports a
        preemption."""
        devices = self.get_devices(
            want,
            donors=donors,
            wait_s=wait_s,
            priority=priority,
            preempt=preempt,
            purpose=purpose,
        )
        if len(devices) != 1:
            raise Invalid(f"{want} is not one device: see get_devices")
        return devices[0]

    def get_devices(
        self,
        *wants: str,
        donors: Iterable[str] = (),
        wait_s: float = 0,
        priority: int = 100,
        preempt: bool = False,
        purpose: str = "python",
    ) -> list[Device]:
        """Gets several devices, all or none, in the order of the wants: "accelerator:cuda=2" is two.
        For the rest see `get_device`."""
        if not wants:
            raise Invalid("no device is wanted")
        how = (list(donors), purpose, wait_s, whole(priority, "priority"), preempt)
        return [Device(inner) for inner in self._inner.get_devices(" ".join(wants), *how)]

    def paged(
        self,
        size: Size,
        *,
        local: Size = "256MiB",
        donors: Iterable[str] = (),
        copies: int | None = None,
        placement: Placement | None = None,
        bandwidth_bps: int = 0,
        reclaim_to: str = RECLAIM_TO,
        port: Port | None = None,
        node: str | None = None,
        wait_s: float = 0,
        priority: int = 100,
        preempt: bool = False,
        purpose: str = "python: arrays",
    ) -> Paged:
        """Borrows memory for arrays of `size` in all, of which at most `local` (at least 4 MiB) is
        resident.

        Requires what `venice run` requires (`venice doctor`). For the rest see `get_memory`.
        """
        waiting = (wait_s, priority, preempt)
        where = (placement, bandwidth_bps, reclaim_to)
        how = _options(donors, port, node, purpose, 0, copies, waiting, where)
        return Paged(self._inner.paged(parse_size(size), parse_size(local), how))

    def array(
        self,
        shape: Shape,
        dtype: "DTypeLike" = float,
        *,
        local: Size = "256MiB",
        donors: Iterable[str] = (),
        copies: int | None = None,
        placement: Placement | None = None,
        bandwidth_bps: int = 0,
        reclaim_to: str = RECLAIM_TO,
        port: Port | None = None,
        node: str | None = None,
        wait_s: float = 0,
        priority: int = 100,
        preempt: bool = False,
        purpose: str = "python: an array",
    ) -> "np.ndarray[Any, Any]":
        """Returns an array of zeros in borrowed memory, of which at most `local` is resident: an
        ordinary `numpy.ndarray`. The memory is given back when the array and its views are gone.
        For several arrays with one budget, see `paged`."""
        size = array_bytes(shape, dtype)
        how: dict[str, Any] = {"donors": donors, "copies": copies, "port": port, "node": node}
        how |= {"wait_s": wait_s, "priority": priority, "preempt": preempt}
        how |= {"placement": placement, "bandwidth_bps": bandwidth_bps, "reclaim_to": reclaim_to}
        with self.paged(size, local=local, purpose=purpose, **how) as paged:
            return paged.array(shape, dtype)

    def object_cache(
        self,
        size: Size,
        *,
        evict_oldest: bool = False,
        max_age_s: float | None = None,
        donors: Iterable[str] = (),
        copies: int | None = None,
        placement: Placement | None = None,
        bandwidth_bps: int = 0,
        reclaim_to: str = RECLAIM_TO,
        port: Port | None = None,
        node: str | None = None,
        wait_s: float = 0,
        priority: int = 100,
        preempt: bool = False,
        purpose: str = "python: object cache",
    ) -> ObjectCache:
        """Creates an object cache in `size` of borrowed memory (at least 16 MiB).

        `evict_oldest`: evict the object put first, not the one unused for the longest time.
        `max_age_s`: older objects are misses. For the rest see `get_memory`.
        """
        waiting = (wait_s, priority, preempt)
        where = (placement, bandwidth_bps, reclaim_to)
        how = _options(donors, port, node, purpose, 0, copies, waiting, where)
        return ObjectCache(
            self._inner.object_cache(parse_size(size), how, evict_oldest, max_age_s)
        )

    def transfer(
        self, grants: Iterable[int], to: str, *, claim_within_s: float = 60
    ) -> Transfer:
        """Transfers grants of this user (`Device.grant`, or the numbers of `venice grants`) to
        another one, `user@node`: all of them or none. Their donors refuse this user with the next
        access. The new owner has `claim_within_s` seconds to claim them, at most ten minutes and no
        less than a lease. Memory requested together is transferred together. Raises `Refused` with
        the reason."""
        numbers = [whole(grant, "grant") for grant in grants]
        number, rows = self._inner.transfer(numbers, to, claim_within_s)
        return Transfer(number, [Transferred(*row) for row in rows])

    def claim(self, transfer: str | None = None, *, wait_s: float = 0) -> Claimed | None:
        """Takes over what was transferred to this user: one transfer, by its number, or all. Waits
        for it for at most `wait_s` seconds. `None`: nothing came, or all of it is lost. Raises
        `NoRoom`, the quota of this user, with nothing claimed."""
        inner = self._inner.claim(transfer, wait_s)
        return None if inner is None else Claimed(inner)


def _options(
    donors: Iterable[str],
    port: Port | None,
    node: str | None,
    purpose: str,
    most_under_way: int,
    copies: int | None,
    waiting: tuple[float, int, bool],
    where: tuple[Placement | None, int, str],
    devices: str = "",
) -> "_venice.Options":
    wait_s, priority, preempt = waiting
    placement, bandwidth_bps, reclaim_to = where
    return _venice.Options(
        list(donors),
        port,
        node,
        purpose,
        most_under_way,
        None if copies is None else whole(copies, "copies"),
        wait_s,
        whole(priority, "priority"),
        preempt,
        placement,
        whole(bandwidth_bps, "bandwidth_bps"),
        reclaim_to,
        devices,
    )


def connect(monitor: str | None = None) -> Rack:
    """Connects to the rack whose Monitor Node is at `monitor` ("host:port"); by default to the one
    named by `VENICE_MONITOR`, otherwise to that of this machine."""
    return Rack(_venice.connect(monitor))
