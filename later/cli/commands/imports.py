"""The command `import`: reads an export into the store."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from later.cli.commands.exports import STREAM
from later.cli.console import notify
from later.cli.exit import CommandFailed
from later.cli.options import config_options, examples, json_option
from later.cli.progress import byte_bar
from later.cli.store_access import load_config, run_with_new_store, this_user
from later.core.audit_event import AuditAction, AuditEvent, AuditOutcome
from later.core.errors import ConfigError, LaterError
from later.core.export_lines import FORMAT, MAX_LINE_BYTES, ExportEnd, ExportHeader
from later.core.export_parser import BadLine, decode_line
from later.core.store_records import Record, TaskEntry
from later.store.open import Store
from later.store.schema import KNOWN_NEEDS, check_store
from later.store.store_writer import Put, StoreWriter

NOT_WHOLE = 3
"""The exit code if lines were not imported, or the file ends before its last line."""
BATCH_RECORDS = 5000
BATCH_BYTES = 4 * 1024 * 1024
MAX_REPORTED_LINES = 20
"""Lines that are reported one by one; the others are counted."""


@click.command(
    "import",
    epilog=examples(
        "later import later-2026-11-23.ndjson --paused --redis redis://10.0.0.1:6379/0",
        "zstd -dc later.ndjson.zst | later import - --data ./restored",
    ),
)
@click.argument("file", metavar="FILE|-")
@click.option("--paused", is_flag=True, help="Pause every topic before its first task is there.")
@json_option
@config_options("import")
def import_(*, file: str, paused: bool, as_json: bool, **flags: str | None) -> int:
    """Read an export into the store.

    The store may be new, or in use. What is there already stays as it is: a task, policy or key of the same name is not
    replaced, and a task that has ended and is remembered is not created again. Tasks keep their ids and times, so
    workers deliver what is due; with --paused nothing is delivered until a topic is resumed. Exit status 0: everything
    is there; 1: the store is away or full (run it again); 2: the file is no export that this version reads; 3: lines
    are wrong or missing, and all others are there.
    """
    config = load_config("import", flags)

    async def read(store: Store) -> int:
        await check_store(
            store.client.execute_each, config.prefix, len(store.keys.shards), in_cluster=store.client.is_cluster
        )
        with _input(file) as source:
            return await import_file(store, source, hold=paused, as_json=as_json)

    if file != STREAM and not Path(file).is_fifo():
        with _input(file) as source:
            parse_header(source.readline(MAX_LINE_BYTES))  # before a store is made for what is no export
    return run_with_new_store(config, read)


async def import_file(store: Store, source: BinaryIO, *, hold: bool, as_json: bool) -> int:
    """Import a file, print what became of its lines, and return the exit status.

    Raises:
        ConfigError: it is no export that this version reads. Nothing was imported.
        StoreDown: the store is away or full; how far the import came is printed.
    """
    job = Import(store, hold)
    outcome = AuditOutcome.FAILED
    try:
        await job.run(source)
        outcome = AuditOutcome.DONE
    except ConfigError:
        raise
    except LaterError as error:
        job.print_report(as_json)
        raise CommandFailed(
            f"{error}; the lines before line {job.put_to + 1} are imported: run the same command again", 1
        ) from error
    finally:
        if job.counts:
            store.audit_trail.record(
                AuditEvent(
                    action=AuditAction.DATA_IMPORTED,
                    key=this_user(),
                    outcome=outcome,
                    details={"records": sum(job.counts.values()), "paused": hold},
                )
            )
    job.print_report(as_json)
    return NOT_WHOLE if job.bad_lines or job.missing else 0


class Import:
    """One run of an import."""

    def __init__(self, store: Store, hold: bool) -> None:
        self._store = store
        self._writer = StoreWriter(store.client, store.keys, store.policies, hold=hold, checks_ended=True)
        self._batch: list[Record] = []
        self._batch_bytes = 0
        self._read_to = 0
        self.put_to = 0
        """The last line up to which all were imported, or told."""
        self.counts = Counter[tuple[str, Put]]()
        """The numbers of records: whether they are tasks or others, and what became of them."""
        self.bad_lines = 0
        self.missing = ""
        """Why the file is not whole; "" if it is."""

    async def run(self, source: BinaryIO) -> None:
        """Import all lines. Raises ConfigError, StoreDown."""
        header = parse_header(source.readline(MAX_LINE_BYTES))
        await self._writer.add_needs(header.needs)
        self._read_to, end, records = 1, None, 0
        with byte_bar(None) as bar:
            for line in _lines(source):
                self._read_to += 1
                bar.advance(len(line))
                if end is not None:
                    self._report_bad("it is after the end of the export")
                    continue
                if not line.strip():
                    continue
                try:
                    found = _decode(line)
                except BadLine as error:
                    self._report_bad(str(error))
                    records += 1
                    continue
                if isinstance(found, ExportEnd):
                    end = found
                else:
                    records += 1
                    await self._add(found, len(line))
        await self._put()
        if end is None:
            self.missing = "the file ends before the end of the export: lines are missing"
        elif end.records != records:
            self.missing = f"the export had {end.records:,} records, and the file has {records:,}"

    async def _add(self, record: Record, size: int) -> None:
        self._batch.append(record)
        self._batch_bytes += size
        if len(self._batch) >= BATCH_RECORDS or self._batch_bytes >= BATCH_BYTES:
            await self._put()

    async def _put(self) -> None:
        now = (await self._store.time.now()).high
        for record, put in zip(self._batch, await self._writer.put(self._batch, now), strict=True):
            self.counts["tasks" if isinstance(record, TaskEntry) else "others", put] += 1
        self._batch, self._batch_bytes, self.put_to = [], 0, self._read_to

    def _report_bad(self, reason: str) -> None:
        self.bad_lines += 1
        if self.bad_lines <= MAX_REPORTED_LINES:
            notify(f"line {self._read_to}: {reason}")

    def print_report(self, as_json: bool) -> None:
        """Print what became of the lines."""
        names = {Put.DONE: "imported", Put.EXISTS: "existing", Put.ENDED: "ended"}
        if as_json:
            fields = {
                kind: {name: self.counts[kind, put] for put, name in names.items()} for kind in ("tasks", "others")
            }
            print(json.dumps({**fields, "bad_lines": self.bad_lines, "whole": not self.missing}))
        else:
            tasks, others = ([f"{self.counts[kind, put]:,}" for put in names] for kind in ("tasks", "others"))
            print(f"{tasks[0]} tasks imported, {tasks[1]} were there, {tasks[2]} have ended")
            print(f"{others[0]} other records imported, {others[1]} were there")
        if self._writer.held_topics:
            notify(f"{self._writer.held_topics:,} topics are paused: `later topics resume NAME` lets one be delivered")
        if self.bad_lines > MAX_REPORTED_LINES:
            notify(f"and {self.bad_lines - MAX_REPORTED_LINES:,} more lines")
        if self.bad_lines:
            notify(f"{self.bad_lines:,} lines were not imported")
        if self.missing:
            notify(self.missing)


def parse_header(line: bytes) -> ExportHeader:
    """Return the first line of an export. Raises ConfigError."""
    try:
        header = decode_line(line)
    except BadLine:
        header = None
    if not isinstance(header, ExportHeader):
        raise ConfigError("line 1: expected the beginning of an export of `later export --all`")
    if header.format != FORMAT:
        raise ConfigError(f"line 1: the export has format {header.format}, this version reads {FORMAT}: update later")
    unknown = sorted({*header.needs} - KNOWN_NEEDS)
    if unknown:
        names = ", ".join(name[:40] for name in unknown)
        raise ConfigError(f"line 1: the export needs what this version of later does not know: {names}")
    return header


def _decode(line: bytes) -> Record | ExportEnd:
    """Return what a line after the first one says. Raises BadLine."""
    if len(line) > MAX_LINE_BYTES:
        raise BadLine(f"it is longer than {MAX_LINE_BYTES} bytes")
    found = decode_line(line)
    if isinstance(found, ExportHeader):
        raise BadLine("it begins another export")
    return found


def _lines(source: BinaryIO) -> Iterator[bytes]:
    """Yield lines; of one that is too long, only the beginning."""
    while line := source.readline(MAX_LINE_BYTES + 1):
        rest = line
        while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = source.readline(MAX_LINE_BYTES + 1)
        yield line


@contextmanager
def _input(file: str) -> Iterator[BinaryIO]:
    """Yield what an export is read from. Raises ConfigError: it cannot be read."""
    if file == STREAM:
        yield sys.stdin.buffer
        return
    try:
        source = Path(file).open("rb")  # noqa: SIM115  # closed below: only its opening may fail as an option does
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    with source:
        yield source
