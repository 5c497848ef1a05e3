"""How many bytes of the store's memory a task takes: waiting, with an id of its caller's own, in error, remembered.

Each figure comes from a store of its own, filled by the library's verbs and then asked for its `used_memory`, which is
what `maxmemory` limits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from later.core.retry import Backoff, Outcome, OutcomeKind, judge
from later.core.task import Task
from later.store.scripts import MAX_TASKS
from later.store.tasks import Tasks
from later.store.types import Claim, ClaimRequest, Settlement
from scripts.bench.environment import Setting
from scripts.bench.results import AtMost, Contender, Goal, Row, Sample
from scripts.bench.seed import a_task, create_all, good, using
from scripts.bench.stores import a_store

DELAY_MS = 15_000
LEASE_MS = 30_000
REMEMBER_MS = 7 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the tasks are that are weighed; `outcome` is what their first delivery came to, None for none."""

    name: str
    own_id: bool = False
    outcome: Outcome | None = None
    goals: Sequence[Goal] = ()


CASES = (
    Case(name="waiting, id made by later", goals=[AtMost("bytes", 240)]),
    Case(name="waiting, id of 36 characters by its caller", own_id=True),
    Case(
        name="in error after one failure, id made by later",
        outcome=Outcome(kind=OutcomeKind.FAILED, reason="status", status=500, message="answered 500"),
    ),
    Case(name="remembered id of 36 characters", own_id=True, outcome=Outcome(kind=OutcomeKind.DONE, status=200)),
)


@contextmanager
def contenders(setting: Setting) -> Iterator[list[Contender]]:
    yield [
        Contender(name=case.name, store="none", goals=case.goals, measure=partial(weigh, setting, case))
        for case in CASES
    ]


def weigh(setting: Setting, case: Case) -> Sample:
    """By how much an empty store has grown."""
    with a_store(setting, "none") as store:
        before = _used(store.info("memory"))
        using(store.url, lambda opened: fill_with(opened, case, setting.scale.weighed))
        return {"bytes": (_used(store.info("memory")) - before) / setting.scale.weighed}


def _used(memory: dict[str, int]) -> int:
    return int(memory["used_memory"])


async def fill_with(store: Tasks, case: Case, tasks: int) -> None:
    """Create the tasks, and deliver them as far as the case says."""
    due_at = int(time.time() * 1000) + DELAY_MS
    ids = (f"order-{number:030}" if case.own_id else "" for number in range(tasks))
    await create_all(store, (a_task(due_at, own_id=id) for id in ids))
    if case.outcome is not None:
        while claims := await _claimed(store, due_at):
            good(await store.settle([_settlement(claim, case.outcome, due_at) for claim in claims]))


async def _claimed(store: Tasks, now: int) -> list[Claim]:
    (claims,) = good(await store.claim([ClaimRequest("order", 0, MAX_TASKS)], now, now + LEASE_MS))
    return claims.claims


def _settlement(claim: Claim, outcome: Outcome, now: int) -> Settlement:
    assert isinstance(claim.task, Task)  # we have just written it
    verdict = judge(claim.task, claim.attempt, claim.failure, outcome, now, Backoff(), random=0)
    return Settlement(claim, verdict, now + REMEMBER_MS)


MEMORY = Row(
    name="memory",
    title="memory of a task: topic `order`, content `hello`, a million of them",
    target="≤ 240 bytes for one that waits",
    figures=("bytes",),
    elsewhere=(
        "huey: 435 bytes",
        "arq: 499",
        "Later (Go): 511",
        "saq: 608",
        "BullMQ: 907",
        "Celery: 1,373",
    ),
    contenders=contenders,
    runs=1,
)
