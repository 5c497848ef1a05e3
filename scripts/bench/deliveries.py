"""Deliveries of tasks due at one instant, until the last has arrived: by later, by BullMQ, and by bare loops."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from scripts.bench import bullmq_worker
from scripts.bench.environment import Environment
from scripts.bench.processes import module_command, run_process, tree_cpu_s
from scripts.bench.programs import run_worker
from scripts.bench.receivers import DEFAULT_LISTENER, Arrival, Listener, Receiver, run_receiver
from scripts.bench.results import AlwaysZero, BenchError, Row, Sample
from scripts.bench.seed import SEEDED_PER_S, build_task, seed_store
from scripts.bench.stores import BenchStore, run_store

TIMEOUT_S = 180.0
LEAD_S = 0.1
delivery_row = partial(Row, figures=("rate",), details=("server_cpu", "store_cpu", "receiver_cpu", "early", "twice"))
"""A row of deliveries. The CPU time of each process is that of 1,000 calls in ms, which is that of one in µs."""
ONCE = (AlwaysZero("early"), AlwaysZero("twice"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTogether:
    """Tasks due at one instant, on how many topics, how their receiver listens, and the worker's environment."""

    tasks: int
    topics: int = 1
    listener: Listener = DEFAULT_LISTENER
    variables: Mapping[str, str] = field(default_factory=dict)


def measure_later(environment: Environment, due: DueTogether, processes: int, durability: str) -> Sample:
    """Measure `later worker`."""
    with (
        run_store(environment, durability) as store,
        run_receiver(environment, due.listener) as receiver,
        run_worker(environment, store, processes, {**receiver.variables, **due.variables}) as worker,
    ):
        due_at = _instant(environment, due.tasks / SEEDED_PER_S)
        urls = receiver.urls(due.listener.origins)
        seed_store(
            store.url,
            (
                build_task(due_at, callback=urls[number % len(urls)], topic=f"order-{number % due.topics}")
                for number in range(due.tasks)
            ),
        )
        sample = _measure(due.tasks, due_at, receiver, worker.pids, store)
        worker.check()
        return sample


def measure_bullmq(environment: Environment, tasks: int, processes: int) -> Sample:
    """Measure BullMQ's worker, on a store without persistence."""
    with run_store(environment, "none") as store, run_receiver(environment) as receiver:
        due_at = _instant(environment, bullmq_worker.START_S + tasks / bullmq_worker.SEEDED_PER_S)
        bullmq_worker.seed_jobs(environment, store, receiver.url, tasks, due_at)
        with bullmq_worker.run_bullmq(environment, store, receiver.url, processes) as worker:
            sample = _measure(tasks, due_at, receiver, worker.pids, store)
            worker.check()
            return sample


def measure_loops(
    environment: Environment, module: str, connections: int, tasks: int, loops: int, listener: Listener
) -> Sample:
    """Measure loops of posts, each in a process of its own, with the same number of calls."""
    each = tasks // loops
    with (
        run_receiver(environment, listener) as receiver,
        environment.temporary_folder() as folder,
        ExitStack() as stack,
    ):
        due_at = _instant(environment, each / SEEDED_PER_S)
        command_line = module_command(module, receiver.url, str(each), f"{due_at / 1000:.3f}", str(connections))
        processes = [
            stack.enter_context(run_process(command_line, folder, f"{module}-{number}", receiver.variables))
            for number in range(loops)
        ]
        return _measure(each * loops, due_at, receiver, [process.pid for process in processes])


def _instant(environment: Environment, preparation_s: float) -> int:
    """Return an instant (ms since the epoch) at which everything is prepared."""
    return int((time.time() + 2 * environment.sizes.lead_s + preparation_s) * 1000)


def _measure(
    tasks: int, due_at: int, receiver: Receiver, pids: Sequence[int], store: BenchStore | None = None
) -> Sample:
    """Wait until all have arrived. CPU time counts from shortly before they are due: before that, requests are built.

    Raises BenchError if the tasks are due before everything is prepared.
    """
    wait_s = due_at / 1000 - LEAD_S - time.time()
    if wait_s < 0:
        raise BenchError(f"the tasks were due {-wait_s:.1f} s before all was prepared")
    time.sleep(wait_s)
    groups = {"server_cpu": pids, "receiver_cpu": [receiver.process.pid]} | (
        {} if store is None else {"store_cpu": [store.pid]}
    )
    before = {name: sum(map(tree_cpu_s, group)) for name, group in groups.items()}
    arrivals = receiver.wait_for_arrivals(tasks, TIMEOUT_S)
    per_1000 = 1_000_000 / len(arrivals)  # of seconds, in ms
    cpu = {name: (sum(map(tree_cpu_s, group)) - before[name]) * per_1000 for name, group in groups.items()}
    return delivery_figures(arrivals, due_at) | cpu


def delivery_figures(arrivals: Sequence[Arrival], due_ms: float) -> dict[str, float]:
    """Return the rate of delivery and the numbers of duplicate and early arrivals."""
    last_ms = max(arrival.at_ms for arrival in arrivals)
    ids = {arrival.id for arrival in arrivals}
    return {
        "rate": len(ids) / (last_ms - due_ms) * 1000,
        "twice": len(arrivals) - len(ids),
        "early": sum(arrival.at_ms < due_ms for arrival in arrivals),
    }
