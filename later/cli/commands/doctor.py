"""The command `doctor`: checks the store for inconsistencies, and repairs them."""

from __future__ import annotations

import json

import click

from later.cli.console import printable
from later.cli.options import config_options, examples
from later.cli.store_access import load_config, run_with_store
from later.core.task import unpack_id
from later.store.open import Store


@click.command(epilog=examples("later doctor", "later doctor --repair --data ./later-data"))
@click.option("--repair", is_flag=True, help="Repair what is wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line: each finding, then a summary.")
@config_options("doctor")
def doctor(*, repair: bool, as_json: bool, **flags: str | None) -> int:
    """Check the whole store; with --repair, repair it.

    Checks that every task is in exactly one bucket, that every entry of a bucket is a task, and that every entry of a
    wake set is right. Safe while workers run. --repair also lists topics again that an older version created. Exit
    status 1 if something is wrong and was not repaired.
    """
    config = load_config("doctor", flags)

    async def examine(store: Store) -> int:
        return await examine_store(store, repair=repair, as_json=as_json)

    return run_with_store(config, examine)


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
