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
from scripts.bench.deliveries import ONCE, DueTogether, delivery_row, measure_later
from scripts.bench.environment import Environment
from scripts.bench.programs import run_api
from scripts.bench.receivers import Listener
from scripts.bench.results import BenchError, Contender, Row, Sample, ShareOfReference
from scripts.bench.rows.create import create_load
from scripts.bench.rows.query import DELAY_MS, query_load
from scripts.bench.rows.requests import measure_requests
from scripts.bench.seed import build_task, seed_store
from scripts.bench.stores import BenchStore, run_store

CREATE, QUERY = "create", "query"
KEYS_SHARE = 0.95
SIGNED_SHARE = 0.97
GUARD_NEW_SHARE = 0.97
GUARD_KEPT_SHARE = 1.0


@contextmanager
def keys_contenders(environment: Environment) -> Iterator[list[Contender]]:
    """Yield creates and queries, each without keys and then with them."""
    durability = environment.durabilities[0]
    yield [
        Contender(
            name=f"{call}, {'with' if with_keys else 'without'} keys",
            store=durability,
            references=[f"{call}, without keys"] if with_keys else [],
            targets=[ShareOfReference(KEYS_SHARE)] if with_keys else [],
            measure=partial(measure_calls, environment, durability, call, with_keys=with_keys),
        )
        for call in (CREATE, QUERY)
        for with_keys in (False, True)
    ]


def measure_calls(environment: Environment, durability: str, call: str, *, with_keys: bool) -> Sample:
    with run_store(environment, durability) as store:
        key = make_key(store) if with_keys else ""
        with run_api(environment, "serve", store) as server:
            if call == CREATE:
                load = create_load(environment, server.url)
            else:
                due_at = int(time.time() * 1000) + DELAY_MS
                tasks = [build_task(due_at) for _ in range(environment.sizes.queried)]
                seed_store(store.url, tasks)
                load = query_load(environment, server.url, [task.id for task in tasks])
            return measure_requests(environment, replace(load, key=key), server, store)


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
    variables = {"LATER_SIGNING_KEY": make_master().text}
    yield _with_and_without(
        environment, ("unsigned", "signed"), Listener(), SIGNED_SHARE, variables | {"LATER_SIGN": "off"}, variables
    )


@contextmanager
def guard_contenders(environment: Environment) -> Iterator[list[Contender]]:
    """Yield deliveries without the guard and with it, on a connection for each call and on kept ones."""
    listeners = {
        "a connection for each call": (Listener(keep_alive=False), GUARD_NEW_SHARE),
        "kept connections": (Listener(), GUARD_KEPT_SHARE),
    }
    yield [
        contender
        for name, (listener, share) in listeners.items()
        for contender in _with_and_without(
            environment,
            (f"{name}, guard off", f"{name}, guard on"),
            listener,
            share,
            {"LATER_GUARD": "off"},
            {"LATER_GUARD": "on"},
        )
    ]


def _with_and_without(
    environment: Environment,
    names: tuple[str, str],
    listener: Listener,
    share: float,
    without: Mapping[str, str],
    with_it: Mapping[str, str],
) -> list[Contender]:
    """Return deliveries with one environment and with another, which must reach a share of the first's rate."""
    durability, skip_reason = environment.durabilities[0], listener.why_missing(environment)
    due = DueTogether(tasks=environment.sizes.due_together, listener=listener)
    return [
        Contender(
            name=f"later worker, {name}",
            store=durability,
            references=[f"later worker, {names[0]}"] if variables is with_it else [],
            targets=[*([ShareOfReference(share)] if variables is with_it else []), *ONCE],
            measure=partial(measure_later, environment, replace(due, variables=variables), 1, durability),
            skip_reason=skip_reason,
        )
        for name, variables in zip(names, (without, with_it), strict=True)
    ]


KEYS = Row(
    name="keys",
    title="single `POST /create` and `POST /query`, 64 connections, without and with API keys",
    target="with keys ≥ 0.95 of without",
    figures=("rate",),
    details=("server_cpu", "store_cpu"),
    contenders=keys_contenders,
)
SIGNED = delivery_row(
    name="signed",
    title="20,000 tasks due at the same instant, unsigned and signed",
    target="signed ≥ 0.97 of unsigned",
    contenders=signed_contenders,
)
GUARD = delivery_row(
    name="guard",
    title="20,000 tasks due at the same instant, without and with the address guard",
    target="with the guard ≥ 0.97 on a connection for each call, the same on kept ones",
    contenders=guard_contenders,
)
