"""Exceptions of the package. Every one is an `Error`."""


class Error(Exception):
    """The base class of all exceptions."""


class Unreachable(Error, ConnectionError):
    """No rack is known, or its Monitor Node or a donor does not answer."""


class Refused(Error, OSError):
    """The rack or the kernel refused."""


class NoRoom(Error, MemoryError):
    """Too little is free."""


class DonorLost(Error, OSError):
    """A donor is gone, and with it the last copy of the requested bytes."""

    def __init__(self, text: str, node: str, offset: int, len_bytes: int) -> None:
        super().__init__(text)
        self.node = node
        self.offset = offset
        self.len_bytes = len_bytes


class DeviceLost(Error, OSError):
    """A device's grant has ended."""


class TaskFailed(Error, RuntimeError):
    """A task failed on an accelerator."""


class OutOfRange(Error, IndexError):
    """The range lies beyond the borrowed memory."""


class Unaligned(Error, ValueError):
    """The offset of an atomic access is not a multiple of eight."""


class Invalid(Error, ValueError):
    """An argument is invalid."""


class WouldBlock(Error, BlockingIOError):
    """A channel with a time-out of 0 has nothing to receive, or no room to send."""


class TimedOut(Error, TimeoutError):
    """A call on a channel did not complete within its time-out."""


class Disconnected(Error, ConnectionError):
    """The other side of a channel has closed, or is gone."""


class Closed(Error, ValueError):
    """The resource was given back, or belongs to the parent process of a fork."""
