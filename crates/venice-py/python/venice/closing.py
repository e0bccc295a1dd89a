"""`with` for resources that are given back."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A resource that a `with` block closes at its end, also after an exception."""

    @abstractmethod
    def close(self) -> None:
        """Gives the resource back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
