"""Lateness while ten consoles are open, on a store of a million tasks in ten thousand topics, beside none open."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from scripts.bench.environment import Environment
from scripts.bench.processes import module_command, run_for_result
from scripts.bench.programs import Program, run_api
from scripts.bench.receivers import Receiver, run_light_receiver
from scripts.bench.results import AtMost, BenchError, Contender, Row, Sample, percentile
from scripts.bench.rows.lateness import TIMEOUT_S, lateness_figures
from scripts.bench.seed import SEEDED_PER_S, build_task, seed_store
from scripts.bench.stores import run_store

CONSOLES = 10
SHARDS = 16
RATE = 200
"""Tasks per second that are delivered meanwhile, of one topic."""
HOUR_MS = 3_600_000
SETTLING_S = 20.0
"""From the start of the daemon until its first count of the store is made, and the first turn is fair."""


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    yield [
        Contender(
            name=f"later up, {CONSOLES} consoles",
            store=environment.durabilities[0],
            targets=[AtMost("p99_ratio", 1.1), AtMost("early", 0)],
            measure=partial(measure_turns, environment),
        )
    ]


def measure_turns(environment: Environment) -> list[Sample]:
    """Fill a store and start a daemon; return a sample of each pair of turns, with consoles and without."""
    sizes = environment.sizes
    topics = [f"topic-{number}" for number in range(sizes.console_topics)]
    with (
        run_store(environment, environment.durabilities[0]) as store,
        run_light_receiver(environment) as receiver,
        run_api(environment, "up", store, variables={"LATER_SHARDS": str(SHARDS)}) as daemon,
    ):
        soon = int(time.time() * 1000) + HOUR_MS
        many = (
            build_task(soon + number * 7919 % (6 * HOUR_MS), topic=topics[number % len(topics)])
            for number in range(sizes.console_tasks)
        )
        seed_store(store.url, many, shards=SHARDS)
        time.sleep(SETTLING_S)
        samples: list[Sample] = []
        for pair in range(sizes.pairs):
            turns: dict[int, Sample] = {}
            for consoles in (CONSOLES, 0) if pair % 2 else (0, CONSOLES):
                turns[consoles] = _measure_turn(
                    environment, store.url, receiver.from_now_on(), daemon, topics, consoles
                )
            samples.append(
                {
                    **turns[CONSOLES],
                    "p99_ratio": turns[CONSOLES]["p99"] / turns[0]["p99"],
                    "p99_alone": turns[0]["p99"],
                    "early": sum(turn["earliest"] < 0 for turn in turns.values()),
                }
            )
        daemon.check()
    return samples


def _measure_turn(
    environment: Environment, store_url: str, receiver: Receiver, daemon: Program, topics: list[str], consoles: int
) -> Sample:
    seconds = environment.sizes.lateness_s
    count = int(RATE * seconds)
    first = int((time.time() + environment.sizes.lead_s + count / SEEDED_PER_S) * 1000)
    dues = (first + index * 1000 // RATE for index in range(count))
    tasks = (build_task(due_at, callback=receiver.url, topic="lateness") for due_at in dues)
    seed_store(store_url, tasks, shards=SHARDS)
    answers: list[float] = []
    if consoles:
        settings = {"url": daemon.url, "consoles": consoles, "topics": topics[:consoles]}
        settings["seconds"] = first / 1000 - time.time() + seconds
        with environment.temporary_folder() as folder:
            command = module_command("console_load", json.dumps(settings))
            answers = sorted(run_for_result(command, folder, "consoles", seconds + TIMEOUT_S)["times"])
        if len(answers) < consoles:
            raise BenchError(f"the consoles made only {len(answers)} calls")
    arrivals = receiver.wait_for_arrivals(count, first / 1000 - time.time() + seconds + TIMEOUT_S)
    figures = lateness_figures(arrivals)
    return figures if not answers else {**figures, "answers_p99": percentile(answers, 99)}


CONSOLES_OPEN = Row(
    name="consoles",
    title="lateness of 200 tasks/s with ten consoles open, beside a million tasks in 10,000 topics and 16 shards",
    target="p99 within 10 % of that without a console",
    figures=("p99_ratio", "p99", "p99_alone"),
    details=("p50", "most", "answers_p99", "early", "twice"),
    contenders=contenders,
    runs=1,
)
