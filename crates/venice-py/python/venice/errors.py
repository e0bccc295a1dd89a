"""What can go wrong. Every exception of this package is an `Error`."""


class Error(Exception):
    """The root of them all."""


class Unreachable(Error, ConnectionError):
    """No rack is known, or its Monitor Node or a donor does not answer."""


class Refused(Error, OSError):
    """The rack or the kernel said no."""


class NoRoom(Error, MemoryError):
    """Not so much is free."""


class DonorLost(Error, OSError):
    """A donor is gone, and with it the last copy of what was asked for."""

    def __init__(self, text: str, node: str, offset: int, len_bytes: int) -> None:
        super().__init__(text)
        self.node = node
        self.offset = offset
        self.len_bytes = len_bytes


class DeviceLost(Error, OSError):
    """A device's grant is over: it may be another's."""


class OutOfRange(Error, IndexError):
    """Beyond what was borrowed."""


class Unaligned(Error, ValueError):
    """An atomic access must be to a multiple of eight."""


class Invalid(Error, ValueError):
    """Something that was asked for cannot be."""


class Closed(Error, ValueError):
    """It was given back, or belongs to the process that this one was forked from."""
