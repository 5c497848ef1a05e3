"""Single creates: one task a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from scripts.bench.daemons import an_api, bare_handlers
from scripts.bench.environment import Setting, why_not
from scripts.bench.load import Load
from scripts.bench.results import AtLeast, Contender, Goal, Row, Sample, ShareOf
from scripts.bench.rows.requests import CONNECTIONS, pressed
from scripts.bench.stores import a_store

BODY = b'{"topic":"order","delay":3600,"retry":3,"callback":"http://127.0.0.1:8888/success","content":"hello"}'
BARE = "bare handler"


@contextmanager
def contenders(setting: Setting) -> Iterator[list[Contender]]:
    yield [
        Contender(name=BARE, measure=lambda: bare(setting)),
        *(_ours(setting, 1, durability) for durability in setting.durabilities),
        *(_ours(setting, 2, durability) for durability in setting.durabilities),
    ]


def _ours(setting: Setting, processes: int, durability: str) -> Contender:
    goals: dict[int, Sequence[Goal]] = {
        1: [ShareOf(0.75)],
        2: [AtLeast("rate", 25_000)],
    }
    return Contender(
        name="later serve" if processes == 1 else f"later serve --processes {processes}",
        store=durability,
        beside=BARE if processes == 1 else "",
        goals=goals[processes] if durability == "none" else (),
        skip=why_not(processes),
        measure=partial(ours, setting, processes, durability),
    )


def bare(setting: Setting) -> Sample:
    with bare_handlers(setting, "create") as server:
        return pressed(setting, _load(setting, server.url), server)


def ours(setting: Setting, processes: int, durability: str) -> Sample:
    with a_store(setting, durability) as store, an_api(setting, "serve", store, processes) as server:
        return pressed(setting, _load(setting, server.url), server, store)


def _load(setting: Setting, url: str) -> Load:
    return Load(url=f"{url}/create", bodies=[BODY], connections=CONNECTIONS, seconds=setting.scale.load_s)


CREATE = Row(
    name="create",
    title="single `POST /create`, 64 connections",
    target="one process: ≥ 0.75 of the bare handler; two: ≥ 25,000/s, more than Later (Go)",
    figures=("rate",),
    besides=("server_cpu", "store_cpu"),
    elsewhere=("Later (Go): 23,900/s [21,100 to 25,700], both cores full",),
    contenders=contenders,
)
