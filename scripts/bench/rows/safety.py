"""The price of keys, signatures and the address guard: the same work with and without each, in turns."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from later.core.signing import make_master
from scripts.bench.deliveries import DueTogether, pair_contender
from scripts.bench.environment import Environment
from scripts.bench.load import Load
from scripts.bench.pairs import Turn, measure_pairs, pair_row
from scripts.bench.programs import Program, run_api
from scripts.bench.receivers import Listener
from scripts.bench.results import AtLeast, BenchError, Contender
from scripts.bench.rows.create import create_load
from scripts.bench.rows.query import DELAY_MS, query_load
from scripts.bench.rows.requests import measure_load
from scripts.bench.seed import build_task, seed_store
from scripts.bench.stores import BenchStore, run_store

CREATE, QUERY = "create", "query"
KEYS_RATIO = 0.95
SIGNED_RATIO = 0.97
GUARD_NEW_RATIO = 0.97
GUARD_KEPT_RATIO = 1.0


@contextmanager
def keys_contenders(environment: Environment) -> Iterator[list[Contender]]:
    durability = environment.durabilities[0]
    yield [
        Contender(
            name=f"{call}, with a key",
            store=durability,
            targets=[AtLeast("ratio", KEYS_RATIO)],
            measure=partial(
                measure_pairs,
                partial(run_calls, environment, durability, call, False),
                partial(run_calls, environment, durability, call, True),
                environment.sizes.pairs,
            ),
        )
        for call in (CREATE, QUERY)
    ]


@contextmanager
def run_calls(
    environment: Environment, durability: str, call: str, with_key: bool, variables: Mapping[str, str]
) -> Iterator[Turn]:
    """Run `later serve` on a store with or without keys, let it warm up, and yield its turn."""
    with run_store(environment, durability) as store:
        key = make_key(store) if with_key else ""
        with run_api(environment, "serve", store, variables=variables) as server:
            load = replace(build_load(environment, call, server, store), key=key, seconds=environment.sizes.turn_s)
            turn = partial(measure_load, environment, load, server, store)
            turn()
            yield turn


def build_load(environment: Environment, call: str, server: Program, store: BenchStore) -> Load:
    """Return the load of a row, and seed the tasks to query."""
    if call == CREATE:
        return create_load(environment, server.url)
    due_at = int(time.time() * 1000) + DELAY_MS
    tasks = [build_task(due_at) for _ in range(environment.sizes.queried)]
    seed_store(store.url, tasks)
    return query_load(environment, server.url, [task.id for task in tasks])


def make_key(store: BenchStore) -> str:
    """Make a key in the store, so that a daemon on it asks for keys, and return it."""
    command = [
        sys.executable,
        "-m",
        "later",
        "keys",
        "create",
        "bench",
        "--scopes",
        "create,read",
        "--redis",
        store.url,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = [word for word in done.stdout.split() if word.startswith("later_")]
    if done.returncode or not found:
        raise BenchError(f"later keys create: {done.stderr.strip()}")
    return found[0]


@contextmanager
def signed_contenders(environment: Environment) -> Iterator[list[Contender]]:
    tasks, key = environment.sizes.turn_tasks, {"LATER_SIGNING_KEY": make_master().text}
    unsigned = DueTogether(tasks=tasks, variables=key | {"LATER_SIGN": "off"})
    yield [pair_contender(environment, "signed", unsigned, DueTogether(tasks=tasks, variables=key), bound=SIGNED_RATIO)]


@contextmanager
def guard_contenders(environment: Environment) -> Iterator[list[Contender]]:
    """Yield deliveries with the guard, on a connection for each call and on kept ones."""
    tasks = environment.sizes.turn_tasks
    cases = {
        "a connection for each call": (Listener(keep_alive=False), GUARD_NEW_RATIO),
        "kept connections": (Listener(), GUARD_KEPT_RATIO),
    }
    yield [
        pair_contender(
            environment,
            f"{name}, guard on",
            DueTogether(tasks=tasks, listener=listener, variables={"LATER_GUARD": "off"}),
            DueTogether(tasks=tasks, listener=listener, variables={"LATER_GUARD": "on"}),
            bound=ratio,
        )
        for name, (listener, ratio) in cases.items()
    ]


KEYS = pair_row(
    name="keys",
    title="single `POST /create` and `POST /query`, 64 connections, in turns of 1 s: with API keys beside none",
    target="with keys ≥ 0.95 of without",
    contenders=keys_contenders,
)
SIGNED = pair_row(
    name="signed",
    title="5,000 tasks due at the same instant, in turns: signed beside unsigned",
    target="signed ≥ 0.97 of unsigned",
    contenders=signed_contenders,
)
GUARD = pair_row(
    name="guard",
    title="5,000 tasks due at the same instant, in turns: with the address guard beside none",
    target="with the guard ≥ 0.97 on a connection for each call, the same on kept ones",
    contenders=guard_contenders,
)
