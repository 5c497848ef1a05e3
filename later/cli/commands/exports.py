"""The command `export`: writes all data of the store to a file."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from later import __version__
from later.cli.console import notify
from later.cli.options import config_options, examples, json_option
from later.cli.progress import task_bar
from later.cli.store_access import load_config, run_with_own_store
from later.core.errors import ConfigError, StoreEmpty
from later.core.export_lines import encode_end, encode_header, encode_record
from later.core.store_records import Record, TaskEntry
from later.store.open import Store
from later.store.schema import LAYOUT_NEEDS
from later.store.store_reader import StoreReader

STREAM = "-"
"""Standard output, or input, in the place of a file."""


@click.command(
    epilog=examples(
        "later export --all later-2026-11-23.ndjson --data ./later-data",
        "later export --all - --redis redis://10.0.0.1:6379/0 | zstd > later.ndjson.zst",
    )
)
@click.argument("file", metavar="FILE|-")
@click.option("--all", "is_all", is_flag=True, required=True, help="Export everything; required.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@json_option
@config_options("export")
def export(*, file: str, is_all: bool, overwrite: bool, as_json: bool, **flags: str | None) -> int:
    """Write all data of the store to a file.

    Each line is a JSON object. Exports tasks in all states with their attempts and failures, remembered ids, policies,
    queues, schedules, bulk jobs, rotations of signing secrets, API keys (never a key itself) and the audit trail.
    `later import` reads it. The store may be in use: each task is as it was at one moment; one that is created or ends
    meanwhile may be missing. The file appears when it is complete, and only its owner can read it.
    """
    del is_all  # click requires it
    config = load_config("export", flags)
    if file != STREAM and not overwrite and Path(file).exists():
        raise ConfigError(f"{file}: it exists; choose another FILE, or give --overwrite")

    async def write(store: Store) -> int:
        if await store.client.execute("open", ("HGET", store.keys.meta, "schema")) is None:
            raise StoreEmpty(f'there is nothing of later\'s in the store (its keys would begin with "{config.prefix}")')
        started = time.monotonic()
        with _output(file) as output:
            counts = await write_export(store, output)
        _report(counts, time.monotonic() - started, file, as_json)
        return 0

    return run_with_own_store(config, write)


async def write_export(store: Store, output: BinaryIO) -> Counter[str]:
    """Write an export, and return the number of its records by kind. Raises StoreDown."""
    reader = StoreReader(store.client, store.keys)
    now = (await store.time.now()).high
    needs = [need for need in await reader.needs() if need not in LAYOUT_NEEDS]
    output.write(encode_header(__version__, now, len(store.keys.shards), needs) + b"\n")
    counts = Counter[str]()
    with task_bar(await reader.count_tasks()) as bar:
        async for records in _records(reader, store, now):
            output.write(b"".join(encode_record(record) + b"\n" for record in records))
            for record in records:
                counts[_kind(record)] += 1
            bar.advance(sum(isinstance(record, TaskEntry) for record in records))
    output.write(encode_end(counts.total(), counts["task"]) + b"\n")
    return counts


async def _records(reader: StoreReader, store: Store, now: int) -> AsyncIterator[Sequence[Record]]:
    async for records in reader.shared():
        yield records
    for shard in store.keys.shards:
        async for records in reader.in_shard(shard):
            yield records
        async for tasks in reader.by_id(shard, now):
            yield tasks


def _kind(record: Record) -> str:
    kind = getattr(record, "kind", None)
    return str(kind) if kind is not None else type(record).__name__.removesuffix("Entry").lower()


@contextmanager
def _output(file: str) -> Iterator[BinaryIO]:
    """Yield where the export is written to: standard output, or a file that gets its name when it is complete."""
    if file == STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    partial = Path(f"{file}.part-{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as output:
            yield output
            output.flush()
            os.fsync(descriptor)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _report(counts: Counter[str], seconds: float, file: str, as_json: bool) -> None:
    if as_json and file != STREAM:
        print(json.dumps({"records": dict(counts), "seconds": round(seconds, 3), "file": file}))
        return
    others = counts.total() - counts["task"]
    rate = counts["task"] / seconds if seconds > 0 else 0
    text = f"{counts['task']:,} tasks and {others:,} other records in {seconds:.1f} s ({rate:,.0f} tasks/s)"
    if file == STREAM:
        notify(text)
    else:
        print(f"{text}: {file}")
