"""An object cache in borrowed memory."""

from dataclasses import dataclass

from . import _venice
from .closing import Closing
from .copies import Copies
from .memory import Buffer, _flat


@dataclass(frozen=True)
class CacheStats:
    """The counters of a cache."""

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
    """A victim store for small caches: put the objects they evict, and query it before the slow
    source. Without room the oldest object is evicted; objects of a lost donor are misses. Any
    thread may use it."""

    def __init__(self, inner: "_venice.ObjectCache") -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"<venice.ObjectCache, {'closed' if self.closed else f'{len(self)} objects'}>"

    def close(self) -> None:
        """Gives its memory back. Repeated calls have no effect."""
        self._inner.close()

    @property
    def closed(self) -> bool:
        """True if it was given back."""
        return self._inner.is_closed()

    @property
    def copies(self) -> Copies:
        """The required copies on different nodes, and the missing ones at present."""
        return Copies(*self._inner.copies())

    def put(self, key: bytes | str, value: Buffer) -> None:
        """Stores `value` under `key`, replacing an older value."""
        self._inner.put(_key(key), _flat(value))

    def get(self, key: bytes | str) -> bytes | None:
        """Returns the value under `key`, or `None`."""
        return self._inner.get(_key(key))

    def delete(self, key: bytes | str) -> bool:
        """Removes the object; returns true if there was one."""
        return self._inner.delete(_key(key))

    def __contains__(self, key: object) -> bool:
        """True if there is one. The check does not count as use. Only bytes and text are keys."""
        return isinstance(key, (bytes, str)) and self._inner.contains(_key(key))

    def __len__(self) -> int:
        """Returns the number of objects."""
        return self.stats().objects

    def clear(self) -> None:
        """Removes every object."""
        self._inner.clear()

    def stats(self) -> CacheStats:
        """Returns the counters."""
        return CacheStats(*self._inner.stats())


def _key(key: bytes | str) -> bytes:
    return key.encode() if isinstance(key, str) else bytes(key)
