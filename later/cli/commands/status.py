"""The command `status`: the store, its workers, and the counts of its tasks."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import click

from later.cli.commands.listing import STATES
from later.cli.console import printable
from later.cli.options import config_options, examples, json_option
from later.cli.store_access import load_config, run_with_store
from later.cli.tables import format_size, print_number_table
from later.core.explain import format_duration
from later.core.policy import Deliver
from later.store.durability_waits import Offers
from later.store.instances import Instances
from later.store.open import Store
from later.store.stats import FORGET_WORKER_MS, HEARTBEAT_TIMEOUT_MS, ServerFacts
from later.store.topic_counts import NO_TASKS, TopicCounts

MAX_NAMED = 5
"""Pulled topics that are named."""
CLOCKS_APART_S = 0.1
"""How far the clocks of the store's nodes may differ before the status warns."""
SPARE_CONNECTIONS = 100
"""Connections that a server should take beside those of later's processes: of replicas, commands and people."""
NO_WORKER = f"no worker heartbeat for {format_duration(HEARTBEAT_TIMEOUT_MS)}: nothing is delivered until a worker runs"


@click.command(epilog=examples("later status --data ./later-data", "later status --json"))
@click.option(
    "--topics",
    type=click.IntRange(0),
    metavar="NUMBER",
    default=20,
    show_default=True,
    help="Topics shown at most, those with the most due tasks first.",
)
@json_option
@config_options("status")
def status(*, topics: int, as_json: bool, **flags: str | None) -> int:
    """Show the store, its workers and its tasks.

    For each topic, shows how many tasks are in each state, how many are due, and how late the oldest due task is.
    """
    config = load_config("status", flags)

    async def print_status(store: Store) -> int:
        report = await read_status(store, config.shown_store_url)
        (print_json if as_json else print_text)(report, topics)
        return 0

    return run_with_store(config, print_status)


class ProcessStatus(NamedTuple):
    """A process of a daemon, and the ms since its last heartbeat.

    `role` is the command of its daemon. It and the version are None of one that tells less: a worker of another
    version, or within an application. One that does not deliver only answers calls.
    """

    name: str
    age_ms: int
    role: str | None = None
    version: str | None = None
    delivers: bool = True

    @property
    def is_alive(self) -> bool:
        return self.age_ms < HEARTBEAT_TIMEOUT_MS


class StoreStatus(NamedTuple):
    """The status of a store. `processes` are in the order of their names; `topics` has no order."""

    address: str
    primary: str | None
    """The address of the server that sentinels name; None if the store has none."""
    shards: int
    server: ServerFacts
    persistence: str
    offers: Offers
    processes: list[ProcessStatus]
    topics: dict[str, TopicCounts]
    remembered: int
    now: int
    pulled: frozenset[str] = frozenset()
    """The topics whose tasks consumers claim."""
    dead_letter_topics: frozenset[str] = frozenset()
    """The topics to which dead tasks of others move."""
    clock_spread_s: float = 0.0
    """How far the clocks of the store's nodes differ."""
    connections_each: int = 0
    """How many connections each process may open to a server."""
    shards_away: int = 0

    @property
    def total(self) -> TopicCounts:
        total = NO_TASKS
        for counts in self.topics.values():
            total = total.plus(counts)
        return total

    @property
    def alive_workers(self) -> int:
        return sum(process.delivers and process.is_alive for process in self.processes)

    @property
    def clients_needed(self) -> int:
        """How many connections a server must take for the processes that are alive, and those that come beside them."""
        return self.connections_each * sum(process.is_alive for process in self.processes) + SPARE_CONNECTIONS

    @property
    def versions(self) -> set[str]:
        """The versions of the processes that are alive, as far as they are known."""
        return {process.version for process in self.processes if process.is_alive and process.version is not None}

    def most_due(self, limit: int) -> list[tuple[str, TopicCounts]]:
        """Return the topics with most tasks due, then with most tasks."""
        return sorted(self.topics.items(), key=lambda item: (-item[1].due, -_task_count(item[1]), item[0]))[:limit]


async def read_status(store: Store, address: str) -> StoreStatus:
    """Read the status. `address` is shown, so it must not contain secrets. Raises StoreDown."""
    now = (await store.time.now()).low
    policies, topics = await store.policies.read(), await store.stats.counts(now)
    return StoreStatus(
        address=address,
        primary=None if store.client.sentinels is None else str(store.client.sentinels.used),
        shards=len(store.keys.shards),
        shards_away=len(store.away_shards),
        server=await store.stats.server_facts(),
        persistence=await store.stats.persistence(),
        offers=await store.durability_waits.offers(),
        processes=list_processes(await store.instances.read(), now),
        topics=topics,
        remembered=await store.stats.remembered_ids(),
        now=now,
        pulled=frozenset(topic for topic in topics if policies.for_topic(topic).deliver is Deliver.PULL),
        dead_letter_topics=policies.dead_letter_topics.intersection(topics),
        clock_spread_s=store.clock.spread_s(),
        connections_each=store.client.max_connections,
    )


def list_processes(instances: Instances, now: int) -> list[ProcessStatus]:
    """Return the processes that sent a heartbeat in the last hour, at `now` (ms)."""
    beats = {**instances.workers, **{name: told.at for name, told in instances.heartbeats.items()}}
    processes = []
    for name, at in sorted(beats.items()):
        if at > now - FORGET_WORKER_MS:
            told = instances.heartbeats.get(name)
            role, version = (None, None) if told is None else (told.role, told.version)
            processes.append(ProcessStatus(name, max(0, now - at), role, version, name in instances.workers))
    return processes


def print_json(report: StoreStatus, max_topics: int) -> None:
    """Print the status, with at most `max_topics` topics, as a JSON object."""
    server, total = report.server, report.total
    result = {
        "store": {
            "address": report.address,
            "primary": report.primary,
            "name": server.name,
            "version": server.version,
            "servers": server.servers,
            "memory_bytes": server.memory,
            "max_memory_bytes": server.max_memory,
            "persistence": report.persistence,
            "shards": report.shards,
            **({"shards_away": report.shards_away} if report.shards_away else {}),
            "clock_spread_s": round(report.clock_spread_s, 3),
            "max_clients": server.max_clients,
            "replicas": [replica._asdict() for replica in report.offers.replicas],
            "durability": report.offers.levels,
        },
        "workers": [
            {"instance": process.name, "role": process.role, "version": process.version}
            | {"last_beat_s": process.age_ms / 1000, "alive": process.is_alive, "delivers": process.delivers}
            for process in report.processes
        ],
        "tasks": _counts_json(total, report.now) | {"total": _task_count(total)},
        "remembered_ids": report.remembered,
        "topics": [
            {"topic": name, "deliver": Deliver.PULL if name in report.pulled else Deliver.PUSH}
            | {"is_dead_letter_topic": name in report.dead_letter_topics}
            | _counts_json(counts, report.now)
            for name, counts in report.most_due(max_topics)
        ],
        "topics_total": len(report.topics),
        "warnings": _warnings(report),
    }
    print(json.dumps(result))


def _warnings(report: StoreStatus) -> list[str]:
    return [*([] if report.alive_workers else [NO_WORKER]), *_further_warnings(report)]


def _further_warnings(report: StoreStatus) -> list[str]:
    """Return the warnings beside that of no worker."""
    found = [_differing_versions(report)] if len(report.versions) > 1 else []
    if report.clock_spread_s > CLOCKS_APART_S:
        apart = format_duration(round(report.clock_spread_s * 1000))
        found.append(f"the clocks of the store's nodes differ by {apart}: tasks are late by as much")
    if 0 < report.server.max_clients < report.clients_needed:
        found.append(
            f"the store takes {report.server.max_clients} connections, and these processes may need "
            f"{report.clients_needed}: raise its maxclients"
        )
    return found


def _differing_versions(report: StoreStatus) -> str:
    return f"the versions differ: {printable(', '.join(sorted(report.versions)))}"


def _process_line(process: ProcessStatus) -> str:
    """Return a process as a line: `host:1 (up 0.1.0): last heartbeat 0.7 s ago`."""
    told = "" if process.role is None else f" ({process.role} {process.version})"
    silent = "" if process.is_alive else ", silent"
    no_worker = "" if process.delivers else ", does not deliver"
    return printable(f"{process.name}{told}: last heartbeat {format_duration(process.age_ms)} ago{silent}{no_worker}")


def _counts_json(counts: TopicCounts, now: int) -> dict[str, Any]:
    late = _late_ms(counts, now)
    by_state = {state: getattr(counts, state) for state in STATES}
    return {**by_state, "due": counts.due, "oldest_lateness_s": None if late is None else late / 1000}


def print_text(report: StoreStatus, max_topics: int) -> None:
    """Print the status, with at most `max_topics` topics, for people."""
    server = report.server
    max_memory = f" of {format_size(server.max_memory)}" if server.max_memory else ", no limit set"
    shards = "1 shard" if report.shards == 1 else f"{report.shards} shards"
    if report.shards_away:
        shards += f", {report.shards_away} of them away: their tasks are not counted"
    primary = "" if report.primary is None else f" (primary {printable(report.primary)})"
    primary = primary if server.servers == 1 else f" ({server.servers} primaries)"
    print(f"store    {server.name} {server.version} at {printable(report.address)}{primary}, {shards}")
    print(f"memory   {format_size(server.memory)}{max_memory}")
    print(f"writes   {printable(report.persistence)}")
    print(f"levels   {', '.join(report.offers.levels)}")
    for replica in report.offers.replicas:
        lag = f"{format_size(replica.lag_bytes)} and {replica.lag_s} s behind"
        print(f"         replica {printable(replica.address)}: {printable(replica.state)}, {lag}")
    print(f"workers  {report.alive_workers} alive" if report.alive_workers else f"workers  {NO_WORKER}")
    for process in report.processes:
        print(f"         {_process_line(process)}")
    for warning in _further_warnings(report):
        print(f"         {warning}")
    print(f"ids      {report.remembered} of ended tasks remembered")
    if report.pulled:
        topics = "1 topic" if len(report.pulled) == 1 else f"{len(report.pulled)} topics"
        print(f"pulled   {topics}, whose tasks consumers claim: {printable(_some(sorted(report.pulled)))}")
    if report.dead_letter_topics:
        topics = "1 topic" if len(report.dead_letter_topics) == 1 else f"{len(report.dead_letter_topics)} topics"
        names = printable(_some(sorted(report.dead_letter_topics)))
        print(f"dead to  {topics}, to which tasks move that die in others: {names}")
    print()
    rows = [_row(name, counts, report.now) for name, counts in report.most_due(max_topics)]
    print_number_table(
        ("topic", *STATES, "due", "oldest late by"), [_row("all topics", report.total, report.now), *rows]
    )
    if len(report.topics) > len(rows):
        print(f"… and {len(report.topics) - len(rows)} more")


def _row(name: str, counts: TopicCounts, now: int) -> list[str]:
    late = _late_ms(counts, now)
    numbers = (*(getattr(counts, state) for state in STATES), counts.due)
    return [name, *map(str, numbers), "-" if late is None else format_duration(late)]


def _some(names: list[str]) -> str:
    """Return the first names of a list."""
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")


def _task_count(counts: TopicCounts) -> int:
    return counts.delay + counts.unack + counts.error + counts.dead


def _late_ms(counts: TopicCounts, now: int) -> int | None:
    return None if counts.oldest_due_at is None else max(0, now - counts.oldest_due_at)
