"""Deliveries of tasks due at the same instant: the time until the last has arrived."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from scripts.bench.environment import Environment
from scripts.bench.load import Load, run_load
from scripts.bench.processes import module_command, run_process, tree_cpu_s
from scripts.bench.programs import run_worker
from scripts.bench.receivers import Arrival, Receiver, run_receiver
from scripts.bench.results import AlwaysZero, AtLeast, Contender, Row, Sample, ShareOfReference, Target
from scripts.bench.seed import build_task, seed_store
from scripts.bench.stores import run_store

BARE = {1: "bare loop of posts", 2: "two bare loops of posts"}
COROUTINES = 256
BULLMQ = 7_000
TIMEOUT_S = 120.0
LEAD_S = 0.1
BODY = b'{"id":"35adbde5-77c4-4d65-adac-0082d91f2554","topic":"order","content":"hello"}'


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    yield [
        Contender(name="the receiver alone", measure=partial(measure_receiver, environment)),
        Contender(name=BARE[1], measure=partial(measure_bare, environment, 1)),
        Contender(name=BARE[2], measure=partial(measure_bare, environment, 2)),
        *(_later_contender(environment, 1, durability) for durability in environment.durabilities),
        *(_later_contender(environment, 2, durability) for durability in environment.durabilities),
    ]


def _later_contender(environment: Environment, processes: int, durability: str) -> Contender:
    rate_targets: dict[int, Sequence[Target]] = {
        1: [ShareOfReference(0.6), AtLeast("rate", BULLMQ)],
        2: [AtLeast("rate", 12_000)],
    }
    return Contender(
        name="later worker" if processes == 1 else f"later worker --processes {processes}",
        store=durability,
        reference=BARE[processes],
        targets=[*(rate_targets[processes] if durability == "none" else ()), AlwaysZero("early"), AlwaysZero("twice")],
        measure=partial(measure_later, environment, processes, durability),
    )


def measure_receiver(environment: Environment) -> Sample:
    """Measure the receiver alone: it must be far faster than any delivery."""
    with run_receiver(environment) as receiver:
        load = Load(url=receiver.url, bodies=[BODY], connections=COROUTINES, seconds=1.0)
        before = receiver.cpu_s()
        result = run_load(environment, load)
        share = (receiver.cpu_s() - before) / result.seconds
    return {"rate": result.rate, "receiver_cpu": share * 100}


def measure_bare(environment: Environment, processes: int) -> Sample:
    each = environment.sizes.due_together // processes
    with run_receiver(environment) as receiver, environment.temporary_folder() as folder, ExitStack() as stack:
        at = time.time() + 2 * environment.sizes.lead_s
        command_line = module_command("bare_poster", receiver.url, str(each), f"{at:.3f}", str(COROUTINES))
        loops = [stack.enter_context(run_process(command_line, folder, f"poster-{n}")) for n in range(processes)]
        cpu = _CpuMeter(at * 1000, receiver, [loop.pid for loop in loops])
        arrivals = receiver.wait_for_arrivals(each * processes, TIMEOUT_S)
        return delivery_figures(arrivals, at * 1000) | cpu.since(arrivals)


def measure_later(environment: Environment, processes: int, durability: str) -> Sample:
    with (
        run_store(environment, durability) as store,
        run_receiver(environment) as receiver,
        run_worker(environment, store, processes) as worker,
    ):
        due_at = int((time.time() + 2 * environment.sizes.lead_s) * 1000)
        seed_store(
            store.url, (build_task(due_at, callback=receiver.url) for _ in range(environment.sizes.due_together))
        )
        cpu = _CpuMeter(due_at, receiver, worker.pids)
        store_before = tree_cpu_s(store.pid)
        arrivals = receiver.wait_for_arrivals(environment.sizes.due_together, TIMEOUT_S)
        store_cpu = (tree_cpu_s(store.pid) - store_before) * 1_000_000 / len(arrivals)
        worker.check()
        return delivery_figures(arrivals, due_at) | cpu.since(arrivals) | {"store_cpu": store_cpu}


def delivery_figures(arrivals: Sequence[Arrival], due_ms: float) -> dict[str, float]:
    """Return the rate of delivery and the numbers of duplicate and early arrivals."""
    last_ms = max(arrival.at_ms for arrival in arrivals)
    ids = {arrival.id for arrival in arrivals}
    return {
        "rate": len(ids) / (last_ms - due_ms) * 1000,
        "twice": len(arrivals) - len(ids),
        "early": sum(arrival.at_ms < due_ms for arrival in arrivals),
    }


class _CpuMeter:
    """The CPU time of deliveries, from shortly before they are due: before that, requests are built."""

    def __init__(self, due_ms: float, receiver: Receiver, pids: Sequence[int]) -> None:
        time.sleep(max(due_ms / 1000 - LEAD_S - time.time(), 0))
        self._receiver = receiver
        self._pids = pids
        self._receiver_s = receiver.cpu_s()
        self._server_s = self._spent_s()

    def since(self, arrivals: Sequence[Arrival]) -> dict[str, float]:
        """Return the receiver's share of a core from first to last arrival, and the server's ms per 1,000 arrivals."""
        times = [arrival.at_ms for arrival in arrivals]
        receiver_s, server_s = self._receiver.cpu_s() - self._receiver_s, self._spent_s() - self._server_s
        return {
            "receiver_cpu": receiver_s * 100_000 / (max(times) - min(times)),
            "server_cpu": server_s * 1_000_000 / len(arrivals),
        }

    def _spent_s(self) -> float:
        return sum(tree_cpu_s(pid) for pid in self._pids)


DELIVER = Row(
    name="deliver",
    title="20,000 tasks due at the same instant T: delivered, from T to the last",
    target="one process: ≥ 0.6 of the bare loop, more than BullMQ's 7,000/s; two: ≥ 12,000/s",
    figures=("rate",),
    details=("server_cpu", "store_cpu", "receiver_cpu", "early", "twice"),
    measured_elsewhere=(
        "Later (Go): 200/s",
        "BullMQ: 7,000/s",
        "saq: 2,320/s",
        "arq: 1,570/s",
        "Celery: 975/s",
    ),
    contenders=contenders,
)
