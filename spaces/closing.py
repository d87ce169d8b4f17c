"""The base class of objects that start processes or threads and must be closed."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A context manager that is closed when its context ends, however it ends."""

    @abstractmethod
    def close(self) -> None:
        """Stop everything that was started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
