"""Idleness: what later takes with nothing due."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from scripts.bench.daemons import Daemon, a_worker, an_api
from scripts.bench.environment import Setting, why_not
from scripts.bench.processes import cpu_s, family, family_cpu_s
from scripts.bench.results import AtMost, Contender, Row, Sample
from scripts.bench.stores import OwnStore, a_store

SETTLE_S = 1.0
"""How long a daemon may take over its start."""
LOOKS_PER_S = 10
OTHERS_PER_S = 7
"""Round trips that are no look for due work: clock, beat, figures, and what is released and forgotten once a second."""


@contextmanager
def contenders(setting: Setting) -> Iterator[list[Contender]]:
    yield [
        *(_ours(setting, "up", durability) for durability in setting.durabilities),
        _ours(setting, "serve", setting.durabilities[0]),
        _ours(setting, "worker", setting.durabilities[0]),
        _ours(setting, "up", setting.durabilities[0], 2),
    ]


def _ours(setting: Setting, command: str, durability: str, processes: int = 1) -> Contender:
    looks = AtMost("round_trips", processes * (LOOKS_PER_S + OTHERS_PER_S))
    return Contender(
        name=f"later {command}" if processes == 1 else f"later {command} --processes {processes}",
        store=durability,
        goals=[AtMost("cpu", 1), looks],
        skip=why_not(processes),
        measure=partial(idle, setting, command, durability, processes),
    )


def idle(setting: Setting, command: str, durability: str, processes: int) -> Sample:
    with a_store(setting, durability) as store:
        if command == "worker":
            with a_worker(setting, store, processes) as daemon:
                return watched(setting, daemon, store)
        with an_api(setting, command, store, processes) as daemon:
            return watched(setting, daemon, store)


def watched(setting: Setting, daemon: Daemon, store: OwnStore) -> Sample:
    """The CPU time of the busiest process, and what the store is asked."""
    time.sleep(SETTLE_S)
    pids = [pid for running in daemon.pids for pid in family(running)]
    before, store_before = {pid: cpu_s(pid) for pid in pids}, family_cpu_s(store.pid)
    trips, commands, started = _trips(store), _commands(store), time.monotonic()
    time.sleep(setting.scale.idle_s)
    trips, commands, seconds = _trips(store) - trips, _commands(store) - commands, time.monotonic() - started
    daemon.check()
    return {
        "cpu": max(cpu_s(pid) - before[pid] for pid in pids) * 100 / seconds,
        "store_busy": (family_cpu_s(store.pid) - store_before) * 100 / seconds,
        "commands": commands / seconds,
        "round_trips": trips / seconds,
    }


def _trips(store: OwnStore) -> int:
    """How often the store has read something that was sent: a pipeline is read at once."""
    return int(store.info("stats")["total_reads_processed"])


def _commands(store: OwnStore) -> int:
    return sum(int(command["calls"]) for command in store.info("commandstats").values())


IDLE = Row(
    name="idle",
    title="idle: nothing due, one shard",
    target="under 1 % of a core for each process; one pipelined look a tick",
    figures=("cpu", "round_trips"),
    besides=("commands", "store_busy"),
    contenders=contenders,
    runs=1,
)
