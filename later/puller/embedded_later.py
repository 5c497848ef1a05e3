"""A later within an application: its tasks are in a store, and no daemon needs to run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from later.puller.claim_source import ClaimSource

if TYPE_CHECKING:
    from later.client.backend import Backend


class EmbeddedLater(ClaimSource, ABC):
    """A later within an application: the backend of its clients, and the source of its claims, while it is open.

    As a `ClaimSource` itself, it is that of an application without a state. It may be entered several times, and closes
    with the last exit.
    """

    backend: Backend

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Open it. Raises LaterError: it cannot be opened, and trying again would not help."""

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    @abstractmethod
    async def pull(self, topics: Collection[str]) -> None:
        """Let the tasks of these topics be claimed here, unless something says that they are delivered otherwise.

        It logs what is in the way. Claims do the same, if the store is away now.
        """

    @abstractmethod
    def claims(self, state: Callable[[], Any]) -> ClaimSource:
        """Return the source of claims of an application. `state` returns what its lifespan has made."""
