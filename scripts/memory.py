"""How many bytes of the store's memory a task takes: waiting, with an id of its caller's own, in error, remembered.

Each figure comes from a server of its own in a temporary folder, filled by the library's verbs and then asked for its
`used_memory`, which is what `maxmemory` limits. Nothing is written to the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from later.core.clock import Clock
from later.core.errors import LaterError, StoreDown
from later.core.retry import Backoff, Kind, Outcome, judge
from later.core.task import Task, new_id
from later.embedded import find_server
from later.store.census import Census, ServerFacts
from later.store.client import Client, connect
from later.store.keys import Keys
from later.store.records import Claim, Settlement, Want
from later.store.scripts import MAX_TASKS
from later.store.store import Store

DELAY_MS = 15_000
LEASE_MS = 30_000
REMEMBER_MS = 7 * 86_400_000
AT_ONCE = 5_000
"""Tasks created in one pipeline."""
PATIENCE_S = 60.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the tasks are that are weighed; `outcome` is what their first delivery came to, None for none."""

    name: str
    own_id: bool
    outcome: Outcome | None


CASES = (
    Case(name="waiting, id made by later", own_id=False, outcome=None),
    Case(name="waiting, id of 36 characters by its caller", own_id=True, outcome=None),
    Case(
        name="in error after one failure, id made by later",
        own_id=False,
        outcome=Outcome(kind=Kind.FAILED, reason="status", status=500, message="answered 500"),
    ),
    Case(name="remembered id of 36 characters", own_id=True, outcome=Outcome(kind=Kind.DONE, status=200)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1_000_000, help="how many of each kind (default: 1000000)")
    parser.add_argument("--server", default=str(find_server()), help="a server's program (default: the one with later)")
    options = parser.parse_args()
    asyncio.run(weigh_all(options.server, options.tasks))


async def weigh_all(server: str, tasks: int) -> None:
    """Print a line for each case."""
    for number, case in enumerate(CASES):
        facts, weight = await weigh(server, case, tasks)
        if number == 0:
            print(f"{facts.name} {facts.version}, {tasks} tasks each, bytes of used_memory a task:", flush=True)
        print(f"{weight / tasks:7.1f}  {case.name}", flush=True)


async def weigh(server: str, case: Case, tasks: int) -> tuple[ServerFacts, int]:
    """What a fresh server says of itself before it holds `tasks` of the case, and by how much it has grown then."""
    with tempfile.TemporaryDirectory(prefix="later-") as folder:
        async with a_store(server, Path(folder)) as (store, census):
            before = await census.server()
            await fill(store, case, tasks)
            return before, (await census.server()).memory - before.memory


async def fill(store: Store, case: Case, tasks: int) -> None:
    """Create the tasks, and deliver them as far as the case says."""
    now = (await store.now()).high
    for start in range(0, tasks, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, tasks))
        good(await store.create([a_task(number, case.own_id, now) for number in numbers]))
    if case.outcome is not None:
        while claims := await claimed(store, now + DELAY_MS):
            good(await store.settle([settlement(claim, case.outcome, now + DELAY_MS) for claim in claims]))


def a_task(number: int, own_id: bool, now: int) -> Task:
    return Task(
        id=f"order-{number:030}" if own_id else new_id(),
        own_id=own_id,
        topic="order",
        callback="http://127.0.0.1:8888/success",
        content="hello",
        headers={},
        max_retry=3,
        created_at=now,
        execute_at=now + DELAY_MS,
        expires_at=None,
    )


async def claimed(store: Store, now: int) -> list[Claim]:
    (claims,) = good(await store.claim([Want("order", 0, MAX_TASKS)], now, now + LEASE_MS))
    return claims.claims


def settlement(claim: Claim, outcome: Outcome, now: int) -> Settlement:
    assert isinstance(claim.task, Task)  # we have just written it
    verdict = judge(claim.task, claim.attempt, claim.failure, outcome, now, Backoff(), chance=0)
    return Settlement(claim, verdict, now + REMEMBER_MS)


def good(answers: Sequence[Answer | LaterError]) -> list[Answer]:
    """The answers, none of which is an error; raised where one is."""
    for answer in answers:
        if isinstance(answer, LaterError):
            raise answer
    return [answer for answer in answers if not isinstance(answer, LaterError)]


@asynccontextmanager
async def a_store(server: str, folder: Path) -> AsyncIterator[tuple[Store, Census]]:
    """An empty store on a server of its own, which ends with it."""
    clock, keys = Clock(time.monotonic, time.time), Keys("later", 1)
    with a_process(server, folder) as (url, process):
        client = Client(
            connect(url, clock, PATIENCE_S),
            timeout_s=PATIENCE_S,
            monotonic=time.monotonic,
            observe=lambda verb, seconds: None,
        )
        try:
            census = Census(client, keys)
            await answering(census, process)
            yield Store(client, keys, clock), census
        finally:
            await client.aclose()


@contextmanager
def a_process(server: str, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The server on a socket in the folder: its URL and its process."""
    socket = folder / "store.sock"
    options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with subprocess.Popen([server, *options], stdout=subprocess.DEVNULL) as process:
        try:
            yield f"unix://{socket}", process
        finally:
            process.kill()


async def answering(census: Census, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers. Raises StoreDown where it has ended instead."""
    while True:
        try:
            return await census.ping()
        except StoreDown:
            if process.poll() is not None:
                raise
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    main()
