"""The command `doctor`: checks the store for inconsistencies, and repairs them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import click

from later.cli.console import notify, printable
from later.cli.options import OptionParamType, config_options, examples
from later.cli.progress import counting_bar
from later.cli.store_access import load_config, run_with_store
from later.core.clock import warn_of_clock
from later.core.task import unpack_id
from later.daemon.signing_key import read_masters
from later.option_types import option_type
from later.store.defects import Finding
from later.store.doctor import Doctor
from later.store.keys import Shard
from later.store.open import Store

PROGRESS_INTERVAL_S = 0.2


@option_type("RANGE")
def shard_range(text: str) -> range:
    """A shard or several in a row, such as `0-63`, counted from 0."""
    match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text, re.ASCII)
    first, last = (0, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
    if first > last:
        raise ValueError("a shard or a range of shards, such as 0-63")
    return range(first, last + 1)


@click.command(
    epilog=examples("later doctor", "later doctor --repair --data ./later-data", "later doctor --shards 0-63")
)
@click.option("--repair", is_flag=True, help="Repair what is wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line: each finding, then a summary.")
@click.option(
    "--shards",
    metavar="RANGE",
    type=OptionParamType(shard_range),
    help="Check only these shards, such as 0-63, to split the work over machines.  [default: all]",
)
@config_options("doctor")
def doctor(*, repair: bool, as_json: bool, shards: range | None, **flags: str | None) -> int:
    """Check the whole store; with --repair, repair it.

    Checks that every task is in exactly one bucket, that every entry of a bucket is a task, that every entry of a
    wake set is right, and that every record of a claim has an end. Safe while workers run. --repair also lists topics
    again that an older version created. Exit status 1 if something is wrong and was not repaired. Warns if the store's
    clock is more than a minute from this machine's, and if signing secrets need a key that --signing-key lacks. Where
    standard error is a terminal, it shows how many tasks are checked, and the time that is left.
    """
    config = load_config("doctor", flags)
    masters = read_masters(config)

    async def examine(store: Store) -> int:
        store.signing.use_masters(masters)
        chosen = choose_shards(store.keys.shards, shards)
        status = await examine_store(store, chosen, repair=repair, as_json=as_json)
        await print_warnings(store)
        return status

    return run_with_store(config, examine)


def choose_shards(shards: Sequence[Shard], numbers: range | None) -> Sequence[Shard]:
    """Return the shards of these numbers, or all. Raises click.UsageError: the store has no such shard."""
    if numbers is None:
        return shards
    if numbers[-1] >= len(shards):
        raise click.UsageError(
            f"--shards: there is no shard {numbers[-1]}; those of the store are 0-{len(shards) - 1}."
        )
    return shards[numbers[0] : numbers[-1] + 1]


async def print_warnings(store: Store) -> None:
    """Print on standard error what no repair mends: a clock that is wrong, and signing keys that are missing.

    Raises:
        StoreDown: the store cannot be reached.
    """
    clock_warning = warn_of_clock(store.clock)
    if clock_warning is not None:
        notify(clock_warning)
    ring = await store.signing.read()
    missing = ring.missing_masters((await store.time.now()).low)
    if missing and not ring.masters:
        notify("signing secrets were rotated; without --signing-key it is not checked whether their keys are there")
        return
    for master, scopes in missing.items():
        notify(f"the signing key {master} is missing, of the secrets of {', '.join(scopes)}")


async def examine_store(store: Store, shards: Sequence[Shard], *, repair: bool, as_json: bool) -> int:
    """Print each finding and a summary; with `repair`, repair each finding. Return 1 if something is still wrong.

    Raises:
        StoreDown: the store cannot be reached.
    """
    findings = repaired = 0
    async with _shown_progress(store.doctor, shards):
        async for finding in store.doctor.examine((await store.time.now()).low, shards):
            findings += 1
            is_repaired = await store.doctor.repair(finding, (await store.time.now()).low) if repair else None
            repaired += is_repaired is True
            _print_finding(finding, is_repaired, as_json=as_json)
    if repair:
        await store.topic_index.complete()
    tasks, entries = store.doctor.tasks, store.doctor.entries
    if as_json:
        print(json.dumps({"tasks": tasks, "entries": entries, "findings": findings, "mended": repaired}))
    else:
        outcome = f"{findings} wrong, {repaired} repaired" if repair else f"{findings} wrong; use --repair to repair"
        print(f"{tasks} tasks and {entries} bucket entries read: {outcome if findings else 'nothing is wrong'}")
    return 1 if findings and not repair else 0


def _print_finding(finding: Finding, is_repaired: bool | None, *, as_json: bool) -> None:
    if not as_json:
        result = {True: "; repaired", False: "; no longer wrong", None: ""}[is_repaired]
        print(printable(str(finding)) + result)
        return
    fields = {
        "kind": finding.kind,
        "id": None if finding.id is None else unpack_id(finding.id),
        "topic": None if finding.topic is None else finding.topic.decode("utf-8", "backslashreplace"),
        "bucket": finding.bucket,
        "shard": finding.shard,
        "where": finding.where,
        "mended": is_repaired,
    }
    print(json.dumps(fields))


@asynccontextmanager
async def _shown_progress(doctor: Doctor, shards: Sequence[Shard]) -> AsyncIterator[None]:
    """Show on a terminal how much of these shards an examination has read."""
    total = await doctor.count_tasks(shards)

    async def show() -> None:
        while True:
            checked = (doctor.tasks + doctor.entries) // 2  # each is read twice: as a task, and as an entry of a bucket
            bar.update(checked, max(total, checked))
            bar.set_description(f"{doctor.shards} of {len(shards)} shards")
            await asyncio.sleep(PROGRESS_INTERVAL_S)

    with counting_bar("tasks", total) as bar:
        shown = asyncio.create_task(show())
        try:
            yield
        finally:
            shown.cancel()
