"""`status`: the store, who is alive, and what there is to do."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from later.cli.console import one_line
from later.cli.tables import print_figures, seconds, size
from later.store.open import Store
from later.store.stats import NO_TASKS, ServerFacts, TopicCounts

ALIVE_MS = 10_000
"""A worker that has not beaten for so long counts as gone."""
NOBODY = "no worker has beaten for 10 s: nothing is delivered until one runs"


class Survey(NamedTuple):
    """What was found. Workers by the ms since their last beat; topics in no order."""

    address: str
    shards: int
    server: ServerFacts
    workers: dict[str, int]
    topics: dict[str, TopicCounts]
    remembered: int
    now: int

    @property
    def total(self) -> TopicCounts:
        total = NO_TASKS
        for counts in self.topics.values():
            total = total.plus(counts)
        return total

    @property
    def alive(self) -> int:
        return sum(ago < ALIVE_MS for ago in self.workers.values())

    def largest(self, limit: int) -> list[tuple[str, TopicCounts]]:
        """The topics with most to do, the largest backlog first."""
        return sorted(self.topics.items(), key=lambda item: (-item[1].due, -_tasks(item[1]), item[0]))[:limit]


async def survey(store: Store, address: str) -> Survey:
    """Read the store's figures. `address` is shown: no secrets in it. Raises StoreDown."""
    now = (await store.now()).low
    return Survey(
        address=address,
        shards=len(store.keys.shards),
        server=await store.stats.server_facts(),
        workers={name: max(0, now - at) for name, at in (await store.stats.workers()).items()},
        topics=await store.stats.counts(now),
        remembered=await store.stats.remembered_ids(),
        now=now,
    )


def print_json(found: Survey, limit: int) -> None:
    print(json.dumps(_as_json(found, limit)))


def _as_json(found: Survey, limit: int) -> dict[str, Any]:
    server, total = found.server, found.total
    return {
        "store": {
            "address": found.address,
            "name": server.name,
            "version": server.version,
            "memory_bytes": server.memory,
            "max_memory_bytes": server.max_memory,
            "persistence": server.persistence,
            "shards": found.shards,
        },
        "workers": [
            {"instance": name, "last_beat_s": ago / 1000, "alive": ago < ALIVE_MS}
            for name, ago in sorted(found.workers.items())
        ],
        "tasks": _counts(total, found.now) | {"total": _tasks(total)},
        "remembered_ids": found.remembered,
        "topics": [{"topic": name} | _counts(counts, found.now) for name, counts in found.largest(limit)],
        "topics_total": len(found.topics),
        "warnings": [] if found.alive else [NOBODY],
    }


def _counts(counts: TopicCounts, now: int) -> dict[str, Any]:
    late = _late_ms(counts, now)
    named = {"delay": counts.delay, "unack": counts.unack, "error": counts.error, "dead": counts.dead}
    return {**named, "due": counts.due, "oldest_lateness_s": None if late is None else late / 1000}


def print_text(found: Survey, limit: int) -> None:
    server, total = found.server, found.total
    memory = size(server.memory) + (f" of {size(server.max_memory)}" if server.max_memory else ", no limit set")
    shards = "1 shard" if found.shards == 1 else f"{found.shards} shards"
    print(f"store    {server.name} {server.version} at {one_line(found.address)}, {shards}")
    print(f"memory   {memory}")
    print(f"writes   {one_line(server.persistence)}")
    print(f"workers  {found.alive} alive" if found.alive else f"workers  {NOBODY}")
    for name, ago in sorted(found.workers.items()):
        silent = "" if ago < ALIVE_MS else ", silent"
        print(f"         {one_line(name)}: last beat {seconds(ago)} ago{silent}")
    print(f"ids      {found.remembered} of ended tasks remembered")
    print()
    rows = [_row(name, counts, found.now) for name, counts in found.largest(limit)]
    print_figures(
        ("topic", "delay", "unack", "error", "dead", "due", "oldest late by"),
        [_row("all topics", total, found.now), *rows],
    )
    if len(found.topics) > len(rows):
        print(f"… and {len(found.topics) - len(rows)} more")


def _row(name: str, counts: TopicCounts, now: int) -> list[str]:
    late = _late_ms(counts, now)
    figures = (counts.delay, counts.unack, counts.error, counts.dead, counts.due)
    return [name, *map(str, figures), "-" if late is None else seconds(late)]


def _tasks(counts: TopicCounts) -> int:
    return counts.delay + counts.unack + counts.error + counts.dead


def _late_ms(counts: TopicCounts, now: int) -> int | None:
    return None if counts.oldest_due_at is None else max(0, now - counts.oldest_due_at)
