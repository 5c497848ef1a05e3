"""`doctor`: what is wrong in the store, and what was mended of it."""

from __future__ import annotations

import json

from later.cli.console import one_line
from later.core.task import unpack_id
from later.store.doctor import Doctor, Finding
from later.store.open import Store


async def look_through(store: Store, *, repair: bool, as_json: bool) -> int:
    """Examine all, with `repair` mend it, and print each finding; 1 where something is left wrong. Raises StoreDown."""
    doctor, findings, mended = store.doctor, 0, 0
    async for finding in doctor.examine((await store.now()).low):
        findings += 1
        mending = await doctor.mend(finding, (await store.now()).low) if repair else None
        mended += mending is True
        print(_json_line(finding, mending) if as_json else _text_line(finding, mending))
    _print_summary(doctor, findings, mended, repair=repair, as_json=as_json)
    return 1 if findings and not repair else 0


def _text_line(finding: Finding, mending: bool | None) -> str:
    after = {True: "; mended", False: "; right by now", None: ""}[mending]
    return one_line(str(finding)) + after


def _json_line(finding: Finding, mending: bool | None) -> str:
    return json.dumps(
        {
            "kind": finding.kind,
            "id": None if finding.id is None else unpack_id(finding.id),
            "topic": None if finding.topic is None else finding.topic.decode("utf-8", "backslashreplace"),
            "bucket": finding.bucket,
            "shard": finding.shard,
            "where": finding.where,
            "mended": mending,
        }
    )


def _print_summary(doctor: Doctor, findings: int, mended: int, *, repair: bool, as_json: bool) -> None:
    if as_json:
        read = {"tasks": doctor.tasks, "entries": doctor.entries}
        print(json.dumps({**read, "findings": findings, "mended": mended}))
        return
    outcome = "nothing is wrong"
    if findings:
        outcome = f"{findings} wrong, {mended} mended" if repair else f"{findings} wrong; --repair mends"
    print(f"{doctor.tasks} tasks and {doctor.entries} bucket entries read: {outcome}")
