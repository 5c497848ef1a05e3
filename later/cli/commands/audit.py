"""The command `audit`: who changed keys, policies, topics or many tasks."""

from __future__ import annotations

import json
from typing import Any

import click

from later.cli.options import config_options, examples, json_lines_option
from later.cli.store_access import load_config, run_with_store
from later.cli.tables import print_text_table
from later.cli.times import PAST_TIME, PAST_TIME_HELP
from later.core.clock import rfc3339
from later.store.audit_trail import AuditEntry
from later.store.open import Store

HEADERS = ("time", "event", "key", "peer", "namespace", "outcome")
"""The columns that each event has. What else it says is in the last column, `details`."""


@click.command(
    epilog=examples(
        "later audit --data ./later-data", "later audit --since 2h --key cli:root --json", about=PAST_TIME_HELP
    )
)
@click.option("--since", type=PAST_TIME, help="Only events at this time or later.  [default: all]")
@click.option(
    "--key", metavar="ID", help="Only events by or about this key, or by a user of the command line (cli:USER)."
)
@json_lines_option
@config_options("audit")
def audit(*, since: float | None, key: str | None, as_json: bool, **flags: str | None) -> int:
    """Show who changed keys, policies, topics or many tasks.

    Shows the last 10,000 events, the oldest first: keys made, revoked and rotated, policies before and after, topics
    paused, resumed and purged, dead tasks redriven, signing secrets rotated. A daemon's log has all events.
    """
    config = load_config("audit", flags)

    async def show(store: Store) -> int:
        since_ms = 0 if since is None else int(since * 1000)
        return print_events([entry async for entry in store.audit_trail.read(since_ms, key)], as_json=as_json)

    return run_with_store(config, show)


def print_events(entries: list[AuditEntry], *, as_json: bool) -> int:
    rows = [{"time": rfc3339(entry.at), **entry.fields} for entry in entries]
    if as_json:
        for row in rows:
            print(json.dumps(row))
    else:
        print_text_table((*HEADERS, "details"), [_cells(row) for row in rows])
    return 0


def _cells(row: dict[str, Any]) -> list[str]:
    details = " ".join(f"{name}={_detail(value)}" for name, value in row.items() if name not in HEADERS)
    return [*(str(row.get(name) or "-") for name in HEADERS), details]


def _detail(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
