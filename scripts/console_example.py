"""A daemon with tasks, schedules, jobs, workers and a history of a week, to look at the console with something in it.

    python -m scripts.console_example

It runs on a temporary directory until Ctrl-C. What it shows is made up: the history is written into the store as a
daemon would have written it, all else is asked for over the API.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from urllib.request import Request, urlopen

from later.core.clock import Clock
from later.core.history import COUNT_FIELDS, DEAD_FIELDS, LATENESS_BUCKETS, LONG, SHORT
from later.embedded.paths import socket_url
from later.store.history import HistoryEntry
from later.store.open import open_existing_store
from later.store.settings import StoreSettings

RECEIVER = Path(__file__).parent / "receiver.py"
HOUR_S = 3600
DAY_S = 24 * HOUR_S
START_S = 30
AHEAD_S = 180
"""The history is written so far ahead, so that its last slot is not empty while somebody looks."""
LATE_TOPIC = "crm/sync"
PAUSED_TOPIC = "billing/charge"
FAILING_TOPIC = "billing/invoice"
WAVE_TOPIC = "mail/reminder"


class Topic(NamedTuple):
    """A topic: its policy, how many of its tasks fall due in each of the next hours, and its share of the history.

    Those of a wave are due within two minutes, the others spread over the hour.
    """

    name: str
    hourly: Sequence[int]
    share: float
    policy: Mapping[str, Any] = {}
    is_wave: bool = False


TOPICS = (
    Topic("shop/order-expiry", [420, 460, 380, 350, 300, 260], 0.44, {"retry": 5, "ttl": 86_400}),
    Topic(WAVE_TOPIC, [620, 840, 1480, 410, 260, 120], 0.22, {"rate": 4, "retry": 4}, is_wave=True),
    Topic("push/notify", [150, 160, 150, 140, 120, 90], 0.17, {"concurrency": 50}),
    Topic(LATE_TOPIC, [60, 60, 50, 50, 40, 40], 0.09, {"rate": 2}),
    Topic(FAILING_TOPIC, [25, 25, 30, 25, 20, 20], 0.05, {"retry": 3, "retry_base": 1, "retry_cap": 1}),
    Topic(PAUSED_TOPIC, [12, 10, 10, 8, 6, 6], 0.02, {"paused": True, "concurrency": 8}),
    Topic("report/daily", [0, 1, 0, 0, 1, 0], 0.01),
)


class Example(NamedTuple):
    """The running daemon: where it answers, and where receivers of its tasks do."""

    url: str
    receiver: str

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Make a call of the API and return its answer."""
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self.url + path, data, method=method), timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def create(self, tasks: Sequence[Mapping[str, Any]], query: str = "") -> None:
        self.call("POST", f"/create/batch{query}", tasks)


def main() -> None:
    """Run until Ctrl-C or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit())
    with run_example() as example:
        print(f"{example.url}/console/", flush=True)
        signal.pause()


@contextmanager
def run_example() -> Iterator[Example]:
    """Run a daemon, a second worker and a receiver, with all that there is to see; end them and remove their data."""
    with tempfile.TemporaryDirectory(prefix="later-example-") as name:
        folder = Path(name)
        data = folder / "data"
        receiver = (sys.executable, str(RECEIVER), "--port", "0")
        up = (sys.executable, "-m", "later", "up", "--listen", "127.0.0.1:0", "--data", str(data))
        worker = (sys.executable, "-m", "later", "worker", "--data", str(data), "--concurrency", "128")
        with _run(receiver, folder / "receiver.log") as receiver_log, _run(up, folder / "up.log") as up_log:
            example = Example(
                _wait_for(up_log, r"listening .*url=(\S+)\s"), _wait_for(receiver_log, r"receiving on (\S+)\s")
            )
            with _run(worker, folder / "worker.log"):
                asyncio.run(write_history(data))
                fill(example)
                yield example


@contextmanager
def _run(command: Sequence[str], log: Path) -> Iterator[Path]:
    """Run a command whose output goes to a file, and end it."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("LATER_")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**ours, "LATER_GUARD_ALLOW": "127.0.0.0/8"}
        )
        try:
            yield log
        finally:
            process.terminate()
            process.wait(START_S)


def _wait_for(log: Path, pattern: str) -> str:
    """Return what the group of a pattern matches in a log, once it is there."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text())
        if found:
            return found[1]
        time.sleep(0.05)
    raise TimeoutError(f"it has not started: {log.read_text()}")


def fill(example: Example) -> None:
    """Create tasks in every state, policies, schedules and jobs, and wait until tasks have died."""
    for topic in TOPICS:
        if topic.policy:
            example.call("PUT", f"/topics/{quote(topic.name, safe='')}/policy", dict(topic.policy))
    example.create([*_dying(example.receiver), *_late(example.receiver)])
    coming = [task for topic in TOPICS for task in _coming(topic)]
    for start in range(0, len(coming), 2000):
        example.create(coming[start : start + 2000], f"?job=import-{1 + start // 2000}")
    for name, schedule in _schedules():
        example.call("PUT", f"/schedules/{name}", schedule)
    example.call("POST", "/schedules/hourly-cleanup/pause")
    _wait_until_dead(example, FAILING_TOPIC, 8)


def _coming(topic: Topic) -> Iterator[dict[str, Any]]:
    """Yield the tasks of a topic that fall due in the next hours, in its waves or evenly."""
    chance = random.Random(topic.name)
    first = time.time() // HOUR_S * HOUR_S
    for hour, number in enumerate(topic.hourly, 1):
        for i in range(number):
            due = first + hour * HOUR_S + (chance.expovariate(1 / 60) if topic.is_wave else chance.random() * HOUR_S)
            yield {
                "id": f"{topic.name.partition('/')[2]}-{hour}{i:04d}",
                "topic": topic.name,
                "callback": f"https://hooks.example.com/{topic.name}",
                "execute_time": round(due, 3),
                "content": json.dumps({"customer": 10_000 + chance.randrange(80_000), "kind": topic.name}),
            }


def _dying(receiver: str) -> Iterator[dict[str, Any]]:
    """Yield tasks that fail until they are dead, each for one of several reasons; and one that waits."""
    customer = {"id": 5513, "name": "Müller & Söhne"}
    for number in range(20_411, 20_419):
        invoice = {"invoice": number, "customer": customer, "total": {"amount": 149.9, "currency": "EUR"}}
        yield {
            "id": f"invoice-{number}",
            "topic": FAILING_TOPIC,
            "callback": f"{receiver}/fail",
            "content": json.dumps(invoice, ensure_ascii=False),
            "headers": {"X-Tenant": "north", "X-Request-Id": f"r-{number}"},
        }
    for number in range(3):
        yield {"id": f"reminder-gone-{number}", "topic": WAVE_TOPIC, "callback": f"{receiver}/gone", "content": "{}"}
    yield {
        "id": "order-77310",
        "topic": "shop/order-expiry",
        "callback": "https://shop.example.com/orders/expire",
        "delay": 1800,
        "content": json.dumps({"order": 77310, "reason": "unpaid"}),
        "ttl": 4 * HOUR_S,
    }


def _late(receiver: str) -> Iterator[dict[str, Any]]:
    """Yield tasks that are due already, more than the rate of their topic lets through; and those of a paused one."""
    for topic, number in ((LATE_TOPIC, 470), (PAUSED_TOPIC, 37)):
        for i in range(number):
            yield {
                "id": f"{topic.partition('/')[2]}-due-{i:04d}",
                "topic": topic,
                "callback": f"{receiver}/success",
                "delay": 0 if topic == LATE_TOPIC else 2,
                "content": json.dumps({"contact": 4000 + i}),
            }


def _schedules() -> Iterator[tuple[str, dict[str, Any]]]:
    common = {"topic": "report/daily", "callback": "https://reports.example.com/run"}
    yield "sales-report", {**common, "cron": "0 9 * * 1-5", "zone": "Europe/Berlin"}
    yield "stock-check", {**common, "topic": "shop/order-expiry", "every": 900, "start": time.time() + 500}
    yield "hourly-cleanup", {**common, "cron": "30 * * * *"}
    yield "month-end", {**common, "cron": "0 6 L * *", "zone": "Europe/London"}


def _wait_until_dead(example: Example, topic: str, number: int) -> None:
    deadline = time.monotonic() + START_S
    while example.call("GET", f"/topics/{quote(topic, safe='')}")["dead"] < number:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{number} tasks of {topic} are not dead")
        time.sleep(0.1)


async def write_history(data: Path) -> None:
    """Write what might have happened in the last week, in slots of ten seconds where these are still kept."""
    store = await open_existing_store(
        StoreSettings(url=socket_url(data), prefix="later", timeout_s=10), Clock(time.monotonic, time.time)
    )
    try:
        now = int(time.time() * 1000)
        recent = now - SHORT.kept_ms
        chance = random.Random(7)
        for at in range(LONG.slot_of(now) - 7 * DAY_S * 1000, recent, LONG.length_ms):
            await store.history.add(at, now, _entry(chance, at, now, LONG.length_ms / 1000))
        for at in range(SHORT.slot_of(recent), now + AHEAD_S * 1000, SHORT.length_ms):
            await store.history.add(at, now, _entry(chance, at, now, SHORT.length_ms / 1000))
    finally:
        await store.aclose()


def _entry(chance: random.Random, at: int, now: int, length_s: float) -> HistoryEntry:
    """Return what happened in a slot: more by day and at full hours, and a receiver that failed forty minutes ago."""
    hour = at / 1000 / HOUR_S % 24
    wave = 2.6 * math.exp(-((hour % 1) * 60) / 4)
    per_s = (9 + 6 * math.sin((hour - 8) / 24 * 2 * math.pi) + 7 * wave) * chance.uniform(0.92, 1.08)
    is_incident = 38 * 60_000 < now - at < 44 * 60_000
    failing = 0.22 if is_incident else 0.008 * chance.random()
    done = round(per_s * length_s * (1 - failing))
    failed = round(per_s * length_s * failing)
    counts = {
        "created": round(per_s * length_s * chance.uniform(0.9, 1.15)), "done": done, "failed": failed,
        "busy": round(per_s * length_s * 0.03 * chance.random()), "retries": failed,
    }  # fmt: skip
    fields = {COUNT_FIELDS[name]: number for name, number in counts.items()}
    fields[DEAD_FIELDS["exhausted"]] = round(failed * 0.02)
    spread = 2.2 + 4 * wave / 2.6 + (9 if is_incident else 0)
    for _ in range(80):
        lateness_s = chance.lognormvariate(math.log(0.001 * spread), 0.75)
        bucket = next((i for i, bound in enumerate(LATENESS_BUCKETS.bounds_s) if lateness_s <= bound), -1)
        field = LATENESS_BUCKETS.fields[bucket]
        fields[field] = fields.get(field, 0) + 1
    topics = {topic.name: _topic_counts(topic, counts) for topic in TOPICS}
    late = {LATE_TOPIC: max(0, round(300 * math.sin(at / 1000 / HOUR_S * 3)))}
    return HistoryEntry(counts=fields, topics=topics, due_tasks=late)


def _topic_counts(topic: Topic, counts: Mapping[str, int]) -> list[int]:
    """Return a topic's part: created, done, failed, busy and dead."""
    share = [round(counts[name] * topic.share) for name in ("created", "done", "failed", "busy")]
    return [*share, 0]


if __name__ == "__main__":
    main()
