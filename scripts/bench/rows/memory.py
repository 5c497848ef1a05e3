"""The memory of a task in the store, in bytes: waiting, with a caller's id, in error, remembered.

Each figure comes from a store of its own. It is the growth of `used_memory`, which is what `maxmemory` limits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from later.core.policy import DEFAULT_POLICY
from later.core.retry import Outcome, OutcomeKind, judge
from later.core.task import Task
from later.store.scripts import MAX_TASKS
from later.store.tasks import Tasks
from later.store.types import Claim, ClaimRequest, Settlement
from scripts.bench.environment import Environment
from scripts.bench.results import AtMost, Contender, Row, Sample, Target
from scripts.bench.seed import build_task, create_all, raise_errors, run_with_tasks
from scripts.bench.stores import run_store

DELAY_MS = 15_000
LEASE_MS = 30_000
REMEMBER_MS = 7 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kind of task to measure; `outcome` is that of its first delivery, None if it has not been delivered."""

    name: str
    own_id: bool = False
    outcome: Outcome | None = None
    targets: Sequence[Target] = ()


CASES = (
    Case(name="waiting, id made by later", targets=[AtMost("bytes", 240)]),
    Case(name="waiting, id of 36 characters by its caller", own_id=True),
    Case(
        name="in error after one failure, id made by later",
        outcome=Outcome(kind=OutcomeKind.FAILED, reason="status", status=500, message="answered 500"),
    ),
    Case(name="remembered id of 36 characters", own_id=True, outcome=Outcome(kind=OutcomeKind.DONE, status=200)),
)


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    yield [
        Contender(
            name=case.name, store="none", targets=case.targets, measure=partial(measure_memory, environment, case)
        )
        for case in CASES
    ]


def measure_memory(environment: Environment, case: Case) -> Sample:
    """Return the bytes per task by which an empty store grows."""
    with run_store(environment, "none") as store:
        before = _used_bytes(store.info("memory"))
        run_with_tasks(store.url, lambda tasks: seed_case(tasks, case, environment.sizes.memory_tasks))
        return {"bytes": (_used_bytes(store.info("memory")) - before) / environment.sizes.memory_tasks}


def _used_bytes(memory: dict[str, int]) -> int:
    return int(memory["used_memory"])


async def seed_case(store: Tasks, case: Case, tasks: int) -> None:
    """Create the tasks, and settle them if the case has an outcome."""
    due_at = int(time.time() * 1000) + DELAY_MS
    ids = (f"order-{number:030}" if case.own_id else "" for number in range(tasks))
    await create_all(store, (build_task(due_at, own_id=id) for id in ids))
    if case.outcome is not None:
        while claims := await _claim(store, due_at):
            raise_errors(await store.settle([_settlement(claim, case.outcome, due_at) for claim in claims]))


async def _claim(store: Tasks, now: int) -> list[Claim]:
    (claims,) = raise_errors(await store.claim([ClaimRequest("order", 0, MAX_TASKS)], now, now + LEASE_MS))
    return claims.claims


def _settlement(claim: Claim, outcome: Outcome, now: int) -> Settlement:
    assert isinstance(claim.task, Task)  # its body was just written, so it can be read
    verdict = judge(claim.task, claim.attempt, claim.failure, outcome, now, DEFAULT_POLICY, random=0)
    return Settlement(claim, verdict, now + REMEMBER_MS)


MEMORY = Row(
    name="memory",
    title="memory of a task: topic `order`, content `hello`, a million of them",
    target="≤ 240 bytes for a waiting task",
    figures=("bytes",),
    measured_elsewhere=(
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
