"""Deliveries of tasks due at one instant, until the last has arrived: by later, by BullMQ, and by bare loops."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from scripts.bench import bullmq_worker
from scripts.bench.environment import Environment
from scripts.bench.pairs import Turn, measure_pairs
from scripts.bench.processes import module_command, run_process, tree_cpu_s
from scripts.bench.programs import run_worker
from scripts.bench.receivers import DEFAULT_LISTENER, Arrival, Listener, Receiver, run_receiver
from scripts.bench.results import AlwaysZero, AtLeast, BenchError, Contender, Row, Sample
from scripts.bench.seed import SEEDED_PER_S, build_task, seed_store
from scripts.bench.stores import BenchStore, run_store

TIMEOUT_S = 180.0
LEAD_S = 0.1
WARM_UP_SHARE = 0.2
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
        run_receiver(environment, due.listener) as receiver,
        run_deliveries(environment, due, receiver, processes, durability) as deliver,
    ):
        return deliver(due.tasks, 2 * environment.sizes.lead_s)


@contextmanager
def run_deliveries(
    environment: Environment, due: DueTogether, receiver: Receiver, processes: int, durability: str
) -> Iterator[Callable[[int, float], Sample]]:
    """Run `later worker` on a store of its own. Yield a function that measures so many tasks after a lead (s)."""
    with (
        run_store(environment, durability) as store,
        run_worker(environment, store, processes, {**receiver.variables, **due.variables}) as worker,
    ):
        urls = receiver.urls(due.listener.origins)

        def deliver(tasks: int, lead_s: float) -> Sample:
            due_at = _instant(lead_s + tasks / SEEDED_PER_S)
            seed_store(
                store.url,
                (
                    build_task(due_at, callback=urls[number % len(urls)], topic=f"order-{number % due.topics}")
                    for number in range(tasks)
                ),
            )
            sample = _measure(tasks, due_at, receiver.from_now_on(), worker.pids, store)
            worker.check()
            return sample

        yield deliver


def measure_delivery_pairs(
    environment: Environment, reference: DueTogether, variant: DueTogether, pairs: int
) -> list[Sample]:
    """Measure `later worker` with two settings in turns. Where they may, both call the same receiver."""
    with ExitStack() as stack:
        listeners = dict.fromkeys((reference.listener, variant.listener))
        receivers = {each: stack.enter_context(run_receiver(environment, each)) for each in listeners}
        starts = [partial(run_turns, environment, due, receivers[due.listener]) for due in (reference, variant)]
        return measure_pairs(starts[0], starts[1], pairs)


@contextmanager
def run_turns(
    environment: Environment, due: DueTogether, receiver: Receiver, variables: Mapping[str, str]
) -> Iterator[Turn]:
    """Run `later worker`, let it warm up, and yield its turn."""
    due = replace(due, variables={**due.variables, **variables})
    lead_s = environment.sizes.turn_lead_s + due.topics / SEEDED_PER_S  # a topic takes as long to seed as a task
    with run_deliveries(environment, due, receiver, 1, environment.durabilities[0]) as deliver:
        deliver(int(due.tasks * WARM_UP_SHARE), lead_s)
        yield partial(deliver, due.tasks, lead_s)


def pair_contender(
    environment: Environment,
    name: str,
    reference: DueTogether,
    variant: DueTogether,
    *,
    bound: float | None = None,
    pairs: int | None = None,
    references: Sequence[str] = (),
) -> Contender:
    """Return `later worker` with a setting, in turns with itself without it; `bound` is the least ratio wanted."""
    return Contender(
        name=f"later worker, {name}",
        store=environment.durabilities[0],
        references=references,
        targets=[*([] if bound is None else [AtLeast("ratio", bound)]), *ONCE],
        measure=partial(measure_delivery_pairs, environment, reference, variant, pairs or environment.sizes.pairs),
        skip_reason=reference.listener.why_missing(environment) or variant.listener.why_missing(environment),
    )


def measure_bullmq(environment: Environment, tasks: int, processes: int) -> Sample:
    """Measure BullMQ's worker, on a store without persistence."""
    with run_store(environment, "none") as store, run_receiver(environment) as receiver:
        preparation_s = bullmq_worker.START_S + tasks / bullmq_worker.SEEDED_PER_S
        due_at = _instant(2 * environment.sizes.lead_s + preparation_s)
        bullmq_worker.seed_jobs(environment, store, tasks, due_at)
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
        due_at = _instant(2 * environment.sizes.lead_s + each / SEEDED_PER_S)
        command_line = module_command(module, receiver.url, str(each), f"{due_at / 1000:.3f}", str(connections))
        processes = [
            stack.enter_context(run_process(command_line, folder, f"{module}-{number}", receiver.variables))
            for number in range(loops)
        ]
        return _measure(each * loops, due_at, receiver, [process.pid for process in processes])


def _instant(preparation_s: float) -> int:
    """Return an instant (ms since the epoch) at which everything is prepared."""
    return int((time.time() + preparation_s) * 1000)


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
