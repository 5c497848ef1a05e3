"""Writes that are acknowledged only when a replica or a disk has them.

A write goes to the store as any other does, and so never waits behind those that wait for a replica. After its answer,
all writes that want the same level share one wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial, reduce

from msgspec import UNSET, UnsetType

from later.core.durability import PRIMARY, Durability, NoOffer, contains, highest, not_offered, parse_durability
from later.core.errors import LaterError, NotDurable
from later.core.task_names import id_of, namespace_from_name
from later.metrics import Metrics
from later.store.durability_waits import Offers
from later.store.group_commit import GroupCommit
from later.store.open import Store
from later.store.types import Deletion, TaskRecord
from later.store.unwaited import retrieve_error

OFFERS_AGE_S = 5.0
"""How old what is known of the store's offers may be."""
_WHERE = {
    Durability.DISK: "the disk of the primary",
    Durability.REPLICA: "a replica",
    Durability.REPLICA_DISK: "the disk of a replica",
}


class DurableWrites:
    """The levels of durability of the writes of one process.

    `own_level` is the level of each answer of the store, if the operator says so (--store-offers).
    """

    def __init__(self, store: Store, metrics: Metrics, *, timeout_ms: int, own_level: Durability | None) -> None:
        self._policies = store.policies
        self._waits = store.durability_waits
        self._monotonic = store.clock.monotonic
        self._metrics = metrics
        self._timeout_s = timeout_ms / 1000
        self._own_level = own_level
        self._offers: Offers | None = None
        self._reading: asyncio.Task[Offers] | None = None
        self._offers_read = (0.0, 0)
        """When the offers were read (s), and how often the server had changed by then."""
        self._groups: dict[Durability, GroupCommit[None, Durability]] = {
            level: GroupCommit(partial(self._wait_all, level, timeout_ms), queue_timeout_s=store.client.timeout_s)
            for level in (Durability.REPLICA, Durability.REPLICA_DISK)
        }

    def higher(self, asked: Durability, topic: str) -> Durability:
        """Return the level that a request and the policy of a topic ask for."""
        policies = self._policies.latest
        if policies.highest_durability is PRIMARY:
            return asked
        return highest(asked, policies.for_topic(topic).durability)

    @property
    def server_changes(self) -> int:
        """A number to be read before a write, for `confirm`."""
        return self._waits.server_changes

    async def begin(self, *levels: Durability) -> int:
        """Check that the store offers these levels, and return `server_changes`.

        Raises:
            Refused: it does not, and nothing may be written.
            StoreDown: the store cannot be asked.
        """
        for level in levels:
            if level is not PRIMARY and (offer := await self.why_not(level)) is not None:
                raise not_offered(offer)
        return self.server_changes

    async def begin_in(self, durability: str | None, topic: str) -> tuple[Durability, int]:
        """Return the level of a request for one topic, and what `begin` does. The policies must have been read.

        Raises: as `begin`, also if what the topic's policy asks for is not offered, but the request's higher level is.
        """
        asked = parse_durability(durability)
        level, by_policy = self.higher(asked, topic), self.higher(PRIMARY, topic)
        return level, (0 if level is PRIMARY else await self.begin(asked, by_policy))

    async def why_not(self, level: Durability) -> NoOffer | None:
        """Return why the store does not offer a level, or None. Raises StoreDown."""
        return (await self._current_offers()).why_not(level)

    async def begin_change(self, asked: Durability) -> int:
        """Begin as `begin` does for changes of tasks whose topics are not known yet, with policies of now."""
        policies = await self._policies.current()
        return await self.begin(asked, policies.daemon.durability)

    async def confirm(self, level: Durability, changes: int, id: str | None = None, *, stored: bool = True) -> None:
        """Wait until the writes so far have reached a level; `changes` is `server_changes` of before the write.

        This request has `stored` something, or found what an earlier one may have.

        Raises:
            NotDurable: they have not in time, or the server is another one by now, which may not have them.
        """
        reached = await self.reach(level, changes)
        if not contains(reached, level):
            raise self.missed(level, reached, id, stored=stored)

    def missed(
        self, level: Durability, reached: Durability, id: str | None = None, *, stored: bool = True
    ) -> NotDurable:
        """Return the error of a write that has not reached its level; or of what was found, if nothing was `stored`."""
        offer = None if self._offers is None else self._offers.why_not(level)
        why = f" within {self._timeout_s:g} s" if offer is None else f": {offer.reason}"
        what = "stored, but" if stored else "nothing was changed, and what is there is"
        return NotDurable(f"{what} not on {_WHERE[level]}{why}", reached=str(reached), id=id, stored=stored)

    async def confirm_edit(self, asked: Durability, topic: str, changes: int, name: str) -> str | UnsetType:
        """Wait as `confirm` does for the change of a task, and return the level for its answer.

        The level is the higher one of `asked` and that of the topic's policy; a topic of "" is not known.
        """
        level = self.higher(asked, topic) if topic else await self._level_of_any(asked, namespace_from_name(name))
        if level is PRIMARY:
            return UNSET
        await self.confirm(level, changes, id_of(name))
        return str(level)

    async def confirm_none(self, asked: Durability, changes: int, name: str) -> None:
        """Wait as `confirm` does for a request that had nothing to change.

        An earlier attempt may have made the change, and missed its level. The answer to its repeat says so of the task,
        and must not before that is as durable as it was to be.
        """
        level = await self._level_of_any(asked, namespace_from_name(name))
        await self.confirm(level, changes, id_of(name), stored=False)

    async def confirm_items(
        self,
        items: Sequence[tuple[str, TaskRecord | Deletion | LaterError]],
        asked: Durability,
        changes: int,
        *,
        unchanged: tuple[type[LaterError], ...],
    ) -> tuple[Durability, list[NotDurable | None]]:
        """Wait as `confirm_each` does for the changes of tasks: each its name, and the answer or the error.

        An item with an error of the kinds `unchanged` is as one of `confirm_none`; other errors are not waited for.
        """
        of_any = dict[str | None, Durability]()
        levels: list[Durability] = []
        for name, answer in items:
            if isinstance(answer, LaterError) and not isinstance(answer, unchanged):
                levels.append(PRIMARY)
            elif not isinstance(answer, LaterError) and answer.topic:
                levels.append(self.higher(asked, answer.topic))
            else:
                namespace = namespace_from_name(name)
                if namespace not in of_any:
                    of_any[namespace] = await self._level_of_any(asked, namespace)
                levels.append(of_any[namespace])
        reached, missed = await self.confirm_each(levels, changes)
        return reached, [
            error and self.missed(level, reached, id_of(name), stored=not isinstance(answer, LaterError))
            for (name, answer), level, error in zip(items, levels, missed, strict=True)
        ]

    async def _level_of_any(self, asked: Durability, namespace: str | None) -> Durability:
        """Return the highest level of a request and of any policy of a namespace, because the topic is not known.

        None stands for all namespaces. A policy's level that the store does not offer does not count: it is no reason
        to wait for ever.
        """
        policies = self._policies.latest
        if policies.highest_durability is PRIMARY:
            return asked
        levels = policies.durabilities if namespace is None else policies.durabilities_in(namespace)
        with suppress(LaterError):  # otherwise the highest one is missed
            levels = [level for level in levels if contains(asked, level) or await self.why_not(level) is None]
        return reduce(highest, levels, asked)

    async def confirm_each(
        self, levels: Sequence[Durability], changes: int
    ) -> tuple[Durability, list[NotDurable | None]]:
        """Wait until each of these tasks has reached its level.

        Return the highest level that was asked for and reached, and the error of each that has missed its own.
        """
        level = reduce(highest, levels, PRIMARY)
        reached = await self.reach(level, changes)
        return reached, [None if contains(reached, own) else self.missed(own, reached) for own in levels]

    async def reach(self, level: Durability, changes: int) -> Durability:
        """Wait as `confirm` does, and return the level that was reached, at most `level`."""
        if level is PRIMARY:
            return level
        started = self._monotonic()
        try:
            offers = await self._current_offers()
            reached = offers.own_level
            if contains(reached, level):
                reached = level
            elif offers.why_not(level) is None:  # otherwise it would be waited for in vain
                reached = highest(reached, await self._wait(level))
        except LaterError:
            reached = PRIMARY
        if self.server_changes != changes:
            reached = PRIMARY
        self._metrics.durability.observe(level, self._monotonic() - started, is_missed=not contains(reached, level))
        return reached

    async def _wait(self, level: Durability) -> Durability:
        try:
            return await asyncio.wait_for(self._groups[level](None), self._timeout_s)
        except TimeoutError:
            return PRIMARY

    async def _wait_all(
        self, level: Durability, timeout_ms: int, waiting: Sequence[None]
    ) -> Sequence[Durability | LaterError]:
        return [await self._waits.wait(level, timeout_ms)] * len(waiting)

    async def _current_offers(self) -> Offers:
        """Return what the store offers, read anew after a while, and after each change of the server.

        All callers share one reading: otherwise, if the store hangs, each would wait for those before.
        """
        offers = self._known_offers()
        if offers is not None:
            return offers
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_offers())
            self._reading.add_done_callback(retrieve_error)
        return await asyncio.shield(self._reading)

    async def _read_offers(self) -> Offers:
        read = (self._monotonic(), self.server_changes)
        try:
            self._offers = offers = await self._waits.offers(self._own_level)
        finally:
            self._reading = None
        self._offers_read = read
        return offers

    def _known_offers(self) -> Offers | None:
        read_at, changes = self._offers_read
        is_old = changes != self.server_changes or self._monotonic() - read_at >= OFFERS_AGE_S
        return None if is_old else self._offers
