"""An object cache in borrowed memory."""

from dataclasses import dataclass

from . import _venice
from .closing import Closing
from .copies import Copies
from .memory import Buffer, _flat


@dataclass(frozen=True)
class CacheStats:
    """What a cache has done."""

    objects: int
    value_bytes: int
    capacity_bytes: int
    puts: int
    hits: int
    misses: int
    evictions: int
    expired: int
    lost: int


class ObjectCache(Closing):
    """A victim store for caches that are too small: put what leaves them, ask before the slow
    source is asked. The oldest object leaves when there is no room; what a lost donor held is a
    miss. Any thread may use it."""

    def __init__(self, inner: "_venice.ObjectCache") -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"<venice.ObjectCache, {'closed' if self.closed else f'{len(self)} objects'}>"

    def close(self) -> None:
        """Gives its memory back. Again: nothing."""
        self._inner.close()

    @property
    def closed(self) -> bool:
        """Was it given back?"""
        return self._inner.is_closed()

    @property
    def copies(self) -> Copies:
        """How many copies there are of it on different nodes, and what is missing just now."""
        return Copies(*self._inner.copies())

    def put(self, key: bytes | str, value: Buffer) -> None:
        """Stores `value` under `key`, in the place of what was there."""
        self._inner.put(_key(key), _flat(value))

    def get(self, key: bytes | str) -> bytes | None:
        """The value under `key`, if there is one."""
        return self._inner.get(_key(key))

    def delete(self, key: bytes | str) -> bool:
        """Takes the object away; tells whether there was one."""
        return self._inner.delete(_key(key))

    def __contains__(self, key: object) -> bool:
        """Is there one? Asking does not count as use. Nothing but bytes and text is ever a key."""
        return isinstance(key, (bytes, str)) and self._inner.contains(_key(key))

    def __len__(self) -> int:
        """How many objects there are."""
        return self.stats().objects

    def clear(self) -> None:
        """Takes every object away."""
        self._inner.clear()

    def stats(self) -> CacheStats:
        """What it has done so far."""
        return CacheStats(*self._inner.stats())


def _key(key: bytes | str) -> bytes:
    return key.encode() if isinstance(key, str) else bytes(key)
