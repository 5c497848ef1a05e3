"""Idle cost: CPU time and round trips of later with nothing due."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from scripts.bench.environment import Environment
from scripts.bench.processes import cpu_s, process_tree, tree_cpu_s
from scripts.bench.programs import Program, run_api, run_worker
from scripts.bench.results import AtMost, Contender, Row, Sample
from scripts.bench.stores import BenchStore, run_store

START_UP_S = 1.0
"""How long to wait after the start of the daemon, so that the start is not measured."""
TICKS_PER_S = 10
"""Each tick of the delay ticker claims due tasks in one round trip."""
OTHERS_PER_S = 7
"""Round trips for everything but claims: clock, heartbeat, statistics, requeue and trim."""


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    yield [
        *(_later_contender(environment, "up", durability) for durability in environment.durabilities),
        _later_contender(environment, "serve", environment.durabilities[0]),
        _later_contender(environment, "worker", environment.durabilities[0]),
        _later_contender(environment, "up", environment.durabilities[0], 2),
    ]


def _later_contender(environment: Environment, command: str, durability: str, processes: int = 1) -> Contender:
    round_trips = AtMost("round_trips", processes * (TICKS_PER_S + OTHERS_PER_S))
    return Contender(
        name=f"later {command}" if processes == 1 else f"later {command} --processes {processes}",
        store=durability,
        targets=[AtMost("cpu", 1), round_trips],
        measure=partial(measure_command, environment, command, durability, processes),
    )


def measure_command(environment: Environment, command: str, durability: str, processes: int) -> Sample:
    with run_store(environment, durability) as store:
        if command == "worker":
            with run_worker(environment, store, processes) as daemon:
                return measure_idle(daemon, store, environment.sizes.idle_s)
        with run_api(environment, command, store, processes) as daemon:
            return measure_idle(daemon, store, environment.sizes.idle_s)


def measure_idle(daemon: Program, store: BenchStore, seconds: float) -> Sample:
    """Return the CPU time of the busiest process and the load on the store, in so many seconds."""
    time.sleep(START_UP_S)
    pids = [pid for parent in daemon.pids for pid in process_tree(parent)]
    before, store_before = {pid: cpu_s(pid) for pid in pids}, tree_cpu_s(store.pid)
    trips_before, commands_before, started = _count_round_trips(store), _count_commands(store), time.monotonic()
    time.sleep(seconds)
    seconds = time.monotonic() - started
    trips, commands = _count_round_trips(store) - trips_before, _count_commands(store) - commands_before
    daemon.check()
    return {
        "cpu": max(cpu_s(pid) - before[pid] for pid in pids) * 100 / seconds,
        "store_busy": (tree_cpu_s(store.pid) - store_before) * 100 / seconds,
        "commands": commands / seconds,
        "round_trips": trips / seconds,
    }


def _count_round_trips(store: BenchStore) -> int:
    """Return the number of reads by the store; it reads a pipeline at once."""
    return int(store.info("stats")["total_reads_processed"])


def _count_commands(store: BenchStore) -> int:
    return sum(int(command["calls"]) for command in store.info("commandstats").values())


IDLE = Row(
    name="idle",
    title="idle: nothing due, one shard",
    target="under 1 % of a core for each process; one round trip a tick for claims",
    figures=("cpu", "round_trips"),
    details=("commands", "store_busy"),
    contenders=contenders,
    runs=1,
)
