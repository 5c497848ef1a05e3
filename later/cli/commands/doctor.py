"""The command `doctor`: checks the store for inconsistencies, and repairs them."""

from __future__ import annotations

import json

import click

from later.cli.console import notify, printable
from later.cli.options import config_options, examples
from later.cli.store_access import load_config, run_with_store
from later.core.clock import warn_of_clock
from later.core.task import unpack_id
from later.daemon.signing_key import read_masters
from later.store.open import Store


@click.command(epilog=examples("later doctor", "later doctor --repair --data ./later-data"))
@click.option("--repair", is_flag=True, help="Repair what is wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line: each finding, then a summary.")
@config_options("doctor")
def doctor(*, repair: bool, as_json: bool, **flags: str | None) -> int:
    """Check the whole store; with --repair, repair it.

    Checks that every task is in exactly one bucket, that every entry of a bucket is a task, that every entry of a
    wake set is right, and that every record of a claim has an end. Safe while workers run. --repair also lists topics
    again that an older version created. Exit status 1 if something is wrong and was not repaired. Warns if the store's
    clock is more than a minute from this machine's, and if signing secrets need a key that --signing-key lacks.
    """
    config = load_config("doctor", flags)
    masters = read_masters(config)

    async def examine(store: Store) -> int:
        store.signing.use_masters(masters)
        status = await examine_store(store, repair=repair, as_json=as_json)
        await print_warnings(store)
        return status

    return run_with_store(config, examine)


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


async def examine_store(store: Store, *, repair: bool, as_json: bool) -> int:
    """Print each finding and a summary; with `repair`, repair each finding. Return 1 if something is still wrong.

    Raises:
        StoreDown: the store cannot be reached.
    """
    findings = repaired = 0
    async for finding in store.doctor.examine((await store.time.now()).low):
        findings += 1
        is_repaired = await store.doctor.repair(finding, (await store.time.now()).low) if repair else None
        repaired += is_repaired is True
        if as_json:
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
        else:
            result = {True: "; repaired", False: "; no longer wrong", None: ""}[is_repaired]
            print(printable(str(finding)) + result)
    if repair:
        await store.topic_index.complete()
    tasks, entries = store.doctor.tasks, store.doctor.entries
    if as_json:
        print(json.dumps({"tasks": tasks, "entries": entries, "findings": findings, "mended": repaired}))
    else:
        outcome = f"{findings} wrong, {repaired} repaired" if repair else f"{findings} wrong; use --repair to repair"
        print(f"{tasks} tasks and {entries} bucket entries read: {outcome if findings else 'nothing is wrong'}")
    return 1 if findings and not repair else 0
