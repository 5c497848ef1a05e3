"""Deliveries of tasks that are all due at the same instant: from then until the last of them has arrived."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from scripts.bench.daemons import a_worker
from scripts.bench.environment import Setting, why_not
from scripts.bench.load import Load, press
from scripts.bench.processes import a_process, family_cpu_s, python
from scripts.bench.receivers import Arrival, Receiver, a_receiver
from scripts.bench.results import AtLeast, Contender, Goal, NoneOf, Row, Sample, ShareOf
from scripts.bench.seed import a_task, fill
from scripts.bench.stores import a_store

BARE = {1: "bare loop of posts", 2: "two bare loops of posts"}
COROUTINES = 256
BULLMQ = 7_000
WITHIN_S = 120.0
BEFORE_S = 0.1
BODY = b'{"id":"35adbde5-77c4-4d65-adac-0082d91f2554","topic":"order","content":"hello"}'


@contextmanager
def contenders(setting: Setting) -> Iterator[list[Contender]]:
    yield [
        Contender(name="the receiver alone, pressed", measure=partial(receiver_alone, setting)),
        Contender(name=BARE[1], measure=partial(bare, setting, 1)),
        Contender(name=BARE[2], measure=partial(bare, setting, 2)),
        *(_ours(setting, 1, durability) for durability in setting.durabilities),
        *(_ours(setting, 2, durability) for durability in setting.durabilities),
    ]


def _ours(setting: Setting, processes: int, durability: str) -> Contender:
    fast: dict[int, Sequence[Goal]] = {1: [ShareOf(0.6), AtLeast("rate", BULLMQ)], 2: [AtLeast("rate", 12_000)]}
    return Contender(
        name="later worker" if processes == 1 else f"later worker --processes {processes}",
        store=durability,
        beside=BARE[processes],
        goals=[*(fast[processes] if durability == "none" else ()), NoneOf("early"), NoneOf("twice")],
        skip=why_not(processes),
        measure=partial(ours, setting, processes, durability),
    )


def receiver_alone(setting: Setting) -> Sample:
    """What the receiver takes: it must be far more than what anybody delivers."""
    with a_receiver(setting) as receiver:
        load = Load(url=receiver.url, bodies=[BODY], connections=COROUTINES, seconds=1.0)
        before = receiver.cpu_s()
        loaded = press(setting, load)
        share = (receiver.cpu_s() - before) / loaded.seconds
    return {"rate": loaded.rate, "receiver_cpu": share * 100}


def bare(setting: Setting, processes: int) -> Sample:
    each = setting.scale.together // processes
    with a_receiver(setting) as receiver, setting.a_folder() as folder, ExitStack() as running:
        at = time.time() + 2 * setting.scale.lead_s
        line = python("bare_poster", receiver.url, str(each), f"{at:.3f}", str(COROUTINES))
        loops = [running.enter_context(a_process(line, folder, f"poster-{n}")) for n in range(processes)]
        cpu = _Cpu(at * 1000, receiver, [loop.pid for loop in loops])
        arrivals = receiver.all_arrived(each * processes, WITHIN_S)
        return delivered(arrivals, at * 1000) | cpu.since(arrivals)


def ours(setting: Setting, processes: int, durability: str) -> Sample:
    with (
        a_store(setting, durability) as store,
        a_receiver(setting) as receiver,
        a_worker(setting, store, processes) as worker,
    ):
        due_at = int((time.time() + 2 * setting.scale.lead_s) * 1000)
        fill(store.url, (a_task(due_at, callback=receiver.url) for _ in range(setting.scale.together)))
        cpu = _Cpu(due_at, receiver, worker.pids)
        store_before = family_cpu_s(store.pid)
        arrivals = receiver.all_arrived(setting.scale.together, WITHIN_S)
        store_cpu = (family_cpu_s(store.pid) - store_before) * 1_000_000 / len(arrivals)
        worker.check()
        return delivered(arrivals, due_at) | cpu.since(arrivals) | {"store_cpu": store_cpu}


def delivered(arrivals: Sequence[Arrival], due_ms: float) -> dict[str, float]:
    """How fast they came, and whether each came once and none too early."""
    last_ms = max(arrival.at_ms for arrival in arrivals)
    ids = {arrival.id for arrival in arrivals}
    return {
        "rate": len(ids) / (last_ms - due_ms) * 1000,
        "twice": len(arrivals) - len(ids),
        "early": sum(arrival.at_ms < due_ms for arrival in arrivals),
    }


class _Cpu:
    """The CPU time that deliveries take: from shortly before they are due, for until then posts are made."""

    def __init__(self, due_ms: float, receiver: Receiver, pids: Sequence[int]) -> None:
        time.sleep(max(due_ms / 1000 - BEFORE_S - time.time(), 0))
        self._receiver = receiver
        self._pids = pids
        self._receiver_s = receiver.cpu_s()
        self._server_s = self._spent_s()

    def since(self, arrivals: Sequence[Arrival]) -> dict[str, float]:
        """The receiver's as a share of the time from the first to the last arrival, the server's for 1,000 of them."""
        times = [arrival.at_ms for arrival in arrivals]
        receiver_s, server_s = self._receiver.cpu_s() - self._receiver_s, self._spent_s() - self._server_s
        return {
            "receiver_cpu": receiver_s * 100_000 / (max(times) - min(times)),
            "server_cpu": server_s * 1_000_000 / len(arrivals),
        }

    def _spent_s(self) -> float:
        return sum(family_cpu_s(pid) for pid in self._pids)


DELIVER = Row(
    name="deliver",
    title="20,000 tasks due at the same instant T: delivered, from T to the last",
    target="one process: ≥ 0.6 of the bare loop, more than BullMQ's 7,000/s; two: ≥ 12,000/s",
    figures=("rate",),
    besides=("server_cpu", "store_cpu", "receiver_cpu", "early", "twice"),
    elsewhere=(
        "Later (Go): 200/s",
        "BullMQ: 7,000/s",
        "saq: 2,320/s",
        "arq: 1,570/s",
        "Celery: 975/s",
    ),
    contenders=contenders,
)
