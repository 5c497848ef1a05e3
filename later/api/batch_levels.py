"""The levels of durability of the tasks of a batch: each its own, and one wait for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from later.api.durable_writes import DurableWrites
from later.core.durability import PRIMARY, Durability, highest, parse_durability
from later.core.errors import Conflict, LaterError, NotFound, Refused
from later.core.policy_scopes import Policies
from later.core.task import Draft, Task
from later.store.types import CreateResult, Deletion

CreateAnswers = Sequence[CreateResult | LaterError]


class CreateLevels:
    """The levels of the tasks of a batch of creates. `asked` is the parameter of the request."""

    def __init__(self, durable_writes: DurableWrites, asked: str | None) -> None:
        self._durable_writes = durable_writes
        self._asked = parse_durability(asked)
        self._levels = dict[int, Durability]()
        """Those above `primary`, by the identities of the tasks."""
        self._to_be_offered = set[Durability]()
        self._unnamed = set[int]()
        """The tasks among them whose id is ours."""
        self._server_changes = 0

    def with_asked(self, draft: Draft) -> Draft:
        """Return a draft that asks for the request's level at least. Raises Refused."""
        if self._asked is PRIMARY:
            return draft
        return msgspec.structs.replace(draft, durability=highest(self._asked, parse_durability(draft.durability)))

    def note(self, draft: Draft, task: Task, policies: Policies) -> None:
        """Note the level of a task that was admitted."""
        if draft.durability is None and policies.highest_durability is PRIMARY:
            return
        asked, policy = parse_durability(draft.durability), policies.for_topic(task.topic)
        level = highest(asked, policy.durability)
        if level is not PRIMARY:
            self._to_be_offered |= {asked, policy.durability}
            self._levels[id(task)] = level
            if draft.id is None:
                self._unnamed.add(id(task))

    async def begin(self) -> None:
        """Check that the store offers the levels.

        Raises:
            Refused: it does not, and nothing may be stored.
            StoreDown: the store cannot be asked.
        """
        self._server_changes = await self._durable_writes.begin(*self._to_be_offered)

    def as_counted(self, tasks: Sequence[Task | Refused]) -> Sequence[Task | Refused]:
        """Return the tasks as a job's counts know them: those with ids of ours by their text."""
        if not self._unnamed:
            return tasks
        return [
            msgspec.structs.replace(task, own_id=False)
            if isinstance(task, Task) and id(task) in self._unnamed
            else task
            for task in tasks
        ]

    async def confirm(
        self, tasks: Sequence[Task | Refused], answers: CreateAnswers
    ) -> tuple[Durability, CreateAnswers]:
        """Wait until all tasks have reached their levels.

        Return the highest one that was asked for and reached, and the answers, with `NotDurable` for tasks that missed
        their own.
        """
        if not self._levels:
            return PRIMARY, answers
        levels = {
            n: self._levels[id(task)]
            for n, (task, answer) in enumerate(zip(tasks, answers, strict=True))
            if id(task) in self._levels and (isinstance(answer, Conflict) or not isinstance(answer, LaterError))
        }
        reached, missed = await self._durable_writes.confirm_each(list(levels.values()), self._server_changes)
        confirmed = list(answers)
        for (n, level), error in zip(levels.items(), missed, strict=True):
            if isinstance(answers[n], Conflict) and error is not None:
                confirmed[n] = self._durable_writes.missed(level, reached, stored=False)
            elif error is not None:
                confirmed[n] = error
        return reached, confirmed


async def confirm_deletes(
    durable_writes: DurableWrites,
    names: Sequence[str | Refused],
    answers: Sequence[Deletion | LaterError],
    asked: Durability,
    server_changes: int,
) -> tuple[Durability, list[Deletion | LaterError]]:
    """Wait until all deletes of a batch have reached their levels, and return as `CreateLevels.confirm` does."""
    items = [(name if isinstance(name, str) else "", a) for name, a in zip(names, answers, strict=True)]
    reached, missed = await durable_writes.confirm_items(items, asked, server_changes, unchanged=(NotFound,))
    return reached, [error or answer for answer, error in zip(answers, missed, strict=True)]
