"""The commands of the group `schedules`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from later.cli.api_paths import schedule_path
from later.cli.commands.tasks import read_fields
from later.cli.console import notify, printable
from later.cli.groups import OrderedGroup
from later.cli.options import (
    DURATION,
    MAX_LISTED,
    SWITCH,
    client_options,
    content_options,
    examples,
    header_options,
    json_lines_option,
    json_option,
    retry_option,
)
from later.cli.tables import print_text_table
from later.cli.times import EXECUTE_TIME
from later.client.http import ApiClient
from later.core.durations import duration_literal

CATCH_UP = ("one", "all", "none")
PAGE_SIZE = 500
"""Schedules per request."""

ScheduleJson = dict[str, Any]


@click.group(cls=OrderedGroup)
def schedules() -> None:
    """Create tasks again and again: put, show and pause schedules.

    A schedule creates a task each time that it fires, by a cron expression or at a fixed interval. Each task has an id
    of its own, made of the schedule and the time, so it is created once, whatever crashes.
    """


@schedules.command(
    "put",
    epilog=examples(
        "later schedules put report --cron '0 9 * * 1-5' --zone Europe/Berlin --topic report "
        "--callback http://127.0.0.1:8888/report",
        "later schedules put cleanup --every 1h --topic cleanup --callback http://127.0.0.1:8888/cleanup --jitter 5m",
    ),
)
@click.argument("id")
@click.option(
    "--cron",
    metavar="TEXT",
    help="When it fires: minute, hour, day of the month, month and day of the week, or @hourly, @daily, @weekly, "
    "@monthly, @yearly.",
)
@click.option("--every", type=DURATION, help="Time from one firing to the next, instead of --cron; 1s or more.")
@click.option("--zone", metavar="TEXT", help="Time zone of --cron, such as Europe/Berlin.  [default: UTC]")
@click.option("--start", type=EXECUTE_TIME, help="Time before which it does not fire; --every counts from it.  "
              "[default: now]")  # fmt: skip
@click.option("--end", type=EXECUTE_TIME, help="Time after which it does not fire.  [default: never]")
@click.option(
    "--catch-up",
    type=click.Choice(CATCH_UP),
    help="Of the times that it missed: the latest fires late (one), all do, or none.  [default: one]",
)
@click.option("--jitter", type=DURATION, help="How much later than its time a task is due, at most.  [default: 0s]")
@click.option("--paused", type=SWITCH, help="Whether it is put paused; what was paused stays so.  [default: off]")
@click.option("--topic", metavar="TEXT", required=True, help="Topic of the tasks.")
@click.option(
    "--callback",
    metavar="URL",
    help="URL to POST to; none for consumers' tasks.  [default: the topic's, as it is when a task is due]",
)
@content_options
@retry_option
@click.option("--ttl", type=DURATION, help="Age at which a task expires undelivered.  [default: the topic's]")
@header_options
@click.option(
    "--remember", type=DURATION, help="How long a task's id is remembered after its end.  [default: the topic's]"
)
@json_option
@client_options
def put(*, client: ApiClient, id: str, as_json: bool, **options: Any) -> int:
    """Create a schedule, or replace it.

    Prints when it fires next. The same command again changes nothing; another one replaces the whole schedule from its
    next firing on.
    """
    answer = client.ask("PUT", schedule_path(id), read_fields(options))
    if as_json:
        print(json.dumps(answer))
        return 0
    zone = options["zone"] or "UTC"
    times = [_format_time(time, zone) for time in answer["next"][:1]]
    print(printable(f"the schedule {answer['id']} " + (f"fires next at {times[0]}" if times else "fires no more")))
    return 0


@schedules.command("get", epilog=examples("later schedules get report"))
@click.argument("id")
@json_option
@client_options
def get(*, client: ApiClient, id: str, as_json: bool) -> int:
    """Show a schedule.

    Shows its fields, when it fires next and when it fired last, and why its last task was refused, if it was. Of
    headers and context only the names are shown.
    """
    schedule = client.ask("GET", schedule_path(id))
    if as_json:
        print(json.dumps(schedule))
    else:
        print_text_table(("field", "value"), list(_field_rows(schedule)))
    return 0


@schedules.command("list", epilog=examples("later schedules list", "later schedules list --namespace shop --json"))
@click.option("--namespace", metavar="TEXT", help="Only schedules of this namespace's topics.  [default: all]")
@click.option(
    "--limit", type=click.IntRange(1, MAX_LISTED), metavar="NUMBER", help="Schedules listed at most.  [default: all]"
)
@json_lines_option
@client_options
def list_schedules(*, client: ApiClient, namespace: str | None, limit: int | None, as_json: bool) -> int:
    """List schedules.

    Shows when each fires next, in its time zone, and when it fired last.
    """
    found = _fetch_schedules(client, namespace)
    if as_json:
        for schedule in islice(found, limit):
            print(json.dumps(schedule))
        return 0
    listed = list(found if limit is None else islice(found, limit + 1))
    print_text_table(("id", "topic", "fires", "next", "last"), list(map(_row, listed[:limit])))
    if len(listed) > len(listed[:limit]):
        print("… and more")
    return 0


@schedules.command("delete", epilog=examples("later schedules delete report"))
@click.argument("id")
@json_option
@client_options
def delete(*, client: ApiClient, id: str, as_json: bool) -> int:
    """Remove a schedule.

    The tasks that it has created stay. Prints its id.
    """
    return _print_id(client.ask("DELETE", schedule_path(id)), as_json=as_json)


@schedules.command("pause", epilog=examples("later schedules pause report"))
@click.argument("id")
@json_option
@client_options
def pause(*, client: ApiClient, id: str, as_json: bool) -> int:
    """Let a schedule fire no more until it is resumed.

    Times that pass meanwhile count as missed.
    """
    return _print_paused(client.ask("POST", f"{schedule_path(id)}/pause", {}), as_json=as_json)


@schedules.command("resume", epilog=examples("later schedules resume report"))
@click.argument("id")
@json_option
@client_options
def resume(*, client: ApiClient, id: str, as_json: bool) -> int:
    """Let a paused schedule fire again.

    Its catch-up decides whether the times that it missed fire now.
    """
    return _print_paused(client.ask("POST", f"{schedule_path(id)}/resume", {}), as_json=as_json)


@schedules.command("run-now", epilog=examples("later schedules run-now report"))
@click.argument("id")
@json_option
@client_options
def run_now(*, client: ApiClient, id: str, as_json: bool) -> int:
    """Create a task of a schedule now.

    The times of the schedule stay as they are; a paused one creates the task, too. Prints the task's id.
    """
    return _print_id(client.ask("POST", f"{schedule_path(id)}/run-now", {}), as_json=as_json)


@schedules.command("next", epilog=examples("later schedules next report"))
@click.argument("id")
@json_option
@client_options
def next_times(*, client: ApiClient, id: str, as_json: bool) -> int:
    """Show the next ten times at which a schedule fires.

    Shows them in its time zone and in UTC.
    """
    schedule = client.ask("GET", schedule_path(id))
    if as_json:
        print(json.dumps({"id": schedule["id"], "zone": schedule.get("zone", "UTC"), "next": schedule["next"]}))
        return 0
    zone = str(schedule.get("zone", "UTC"))
    zones = ["UTC"] if zone == "UTC" else [zone, "UTC"]
    print_text_table(zones, [[_format_time(time, name) for name in zones] for time in schedule["next"]])
    if schedule.get("paused"):
        notify(f"the schedule {id} is paused: times that pass until it is resumed count as missed")
    elif not schedule["next"]:
        notify(f"the schedule {id} fires no more")
    return 0


def _fetch_schedules(client: ApiClient, namespace: str | None) -> Iterator[ScheduleJson]:
    parameters = {"limit": str(PAGE_SIZE)} | ({} if namespace is None else {"namespace": namespace})
    while True:
        page = client.ask("GET", f"/schedules?{urlencode(parameters, errors='surrogateescape')}")
        yield from page["schedules"]
        if page["cursor"] is None:
            return
        parameters["cursor"] = page["cursor"]


def _row(schedule: ScheduleJson) -> list[str]:
    zone = str(schedule.get("zone", "UTC"))
    if schedule.get("cron") is None:
        fires = f"every {duration_literal(schedule['every'])}"
    else:
        fires = f"{schedule['cron']} {zone}"
    next = "paused" if schedule.get("paused") else _format_time(schedule["next"][0], zone) if schedule["next"] else "-"
    last = _format_time(schedule["last"]["time"], zone) if schedule.get("last") else "-"
    return [schedule["id"], schedule["topic"], fires, next, f"{last} (refused)" if schedule.get("last_error") else last]


def _field_rows(schedule: ScheduleJson) -> Iterator[tuple[str, str]]:
    zone = str(schedule.get("zone", "UTC"))
    for name, value in schedule.items():
        match name, value:
            case _, None | []:
                pass
            case "every" | "jitter" | "ttl" | "remember", int() | float():
                yield name, duration_literal(value)
            case "start" | "end" | "created_at", str():
                yield name, _format_time(value, zone)
            case "next", [*times]:
                for time in times:
                    yield name, _format_time(time, zone)
            case "last", {"time": str(time), "task_id": task_id}:
                yield name, f"{_format_time(time, zone)}: {task_id}"
            case "last_error", {"time": str(time), "message": message}:
                yield name, f"{_format_time(time, zone)}: {message}"
            case "paused", bool():
                yield name, "on" if value else "off"
            case _:
                yield name, value if isinstance(value, str) else json.dumps(value)


def _format_time(time: str, zone: str) -> str:
    """Format a time with the day of the week, in a time zone: `Fri 2027-01-15 09:00:00+01:00`.

    If this machine does not know the zone, the time is in UTC.
    """
    moment = datetime.fromisoformat(time)
    with suppress(ZoneInfoNotFoundError, ValueError, OSError):
        moment = moment.astimezone(ZoneInfo(zone))
    return f"{moment:%a} {moment.isoformat(' ', 'milliseconds' if moment.microsecond else 'seconds')}"


def _print_id(answer: Mapping[str, Any], *, as_json: bool) -> int:
    print(json.dumps(answer) if as_json else printable(str(answer["id"])))
    return 0


def _print_paused(answer: Mapping[str, Any], *, as_json: bool) -> int:
    state = "is paused" if answer["paused"] else "is not paused"
    print(json.dumps(answer) if as_json else printable(f"the schedule {answer['id']} {state}"))
    return 0
