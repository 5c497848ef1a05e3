"""The commands of the group `handlers`: those of an application, and what they wish of policies."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import click

from later.application import Later
from later.cli.application_option import (
    ABOUT_APPLICATION,
    application_argument,
    application_options,
    load_application,
)
from later.cli.console import notify
from later.cli.groups import OrderedGroup
from later.cli.options import examples, json_lines_option, json_option
from later.cli.policy_options import format_field
from later.cli.tables import print_text_table
from later.core.durations import duration_literal
from later.core.errors import LaterError
from later.handlers.declared_schedules import ScheduleChange
from later.handlers.handler import Handler
from later.handlers.policy_wishes import PolicyChange, check_wish, fields_to_set

ABOUT_MODULE = (
    "APP is MODULE:ATTRIBUTE, such as shop.tasks:tasks: a Later, or a function that returns one. The module is "
    "imported from the current directory, or from where Python finds others. Nothing is connected."
)
MAX_SHOWN_CHARS = 60
"""The longest value of a schedule in a table, such as its payload."""


@click.group(cls=OrderedGroup)
def handlers() -> None:
    """List, check and apply the handlers of an application.

    A handler is a function of a Python application that does a topic's tasks. It may wish fields of the topic's policy.
    """


@handlers.command("list", epilog=examples("later handlers list shop.tasks:tasks", about=ABOUT_MODULE))
@application_argument
@json_lines_option
def list_handlers(*, app: str, as_json: bool) -> int:
    """List an application's handlers.

    Shows of each its topics, its payload, how many run at a time in a process, its timeout, what it wishes of its
    topic's policy, and its schedules.
    """
    application = load_application(app)
    try:
        shown = [_handler_json(handler) for handler in application]
    except TypeError as error:
        raise LaterError(str(error)) from None
    if as_json:
        for fields in shown:
            print(json.dumps(fields))
        return 0
    rows = [
        (
            fields["topic"],
            ", ".join(fields["aliases"]) or "-",
            fields["payload"] or "-",
            str(fields["concurrency"]),
            "-" if fields["timeout"] is None else duration_literal(fields["timeout"]),
            ", ".join(f"{name} {value}" for name, value in fields["policy"].items()) or "-",
            ", ".join(fields["schedules"]) or "-",
        )
        for fields in shown
    ]
    print_text_table(("topic", "aliases", "payload", "concurrency", "timeout", "wishes", "schedules"), rows)
    return 0


def _handler_json(handler: Handler[Any]) -> dict[str, Any]:
    """Return what is shown of a handler. Raises TypeError: a type cannot be resolved, or has no codec."""
    handler.check()
    parameters = handler.parameters
    return {
        "topic": handler.topic,
        "aliases": list(handler.aliases),
        "payload": None if parameters.payload is None else inspect.formatannotation(parameters.payload_type),
        "concurrency": handler.concurrency,
        "timeout": handler.timeout_s,
        "strict": handler.strict,
        "policy": {name: value if isinstance(value, int | float | str) else str(value)
                   for name, value in handler.policy.items()},
        "schedules": [schedule.id for schedule in handler.schedules.values()],
    }  # fmt: skip


@handlers.command(
    "check",
    epilog=examples(
        "later handlers check shop.tasks:tasks",
        about=f"{ABOUT_MODULE} The exit status is 0 if all is well, and 1 if not.",
    ),
)
@application_argument
def check_handlers(*, app: str) -> int:
    """Check an application's handlers.

    Resolves the types of all payloads and dependencies, and checks the fields of policies that are wished and the
    payloads of schedules. Says of each handler that is wrong what to change.
    """
    application = load_application(app)
    faults = [fault for handler in application for fault in _faults_of(handler)]
    for fault in faults:
        notify(fault)
    count = len([*application])
    print(f"{len(faults)} of {count} handlers are wrong" if faults else f"all {count} handlers are well")
    return 1 if faults else 0


def _faults_of(handler: Handler[Any]) -> list[str]:
    try:
        handler.check()
        check_wish(handler.topic, handler.policy)
        for schedule in handler.schedules.values():
            handler.schedule_content(schedule)
    except (TypeError, LaterError) as error:
        return [str(error)]
    return []


@handlers.command(
    "apply",
    epilog=examples(
        "later handlers apply shop.tasks:tasks",
        "later handlers apply shop.tasks:tasks --yes",
        "later handlers apply shop.tasks:tasks --dry-run --json",
        about=ABOUT_APPLICATION,
    ),
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation; required without a terminal.")
@click.option("--dry-run", is_flag=True, help="Change nothing; print what would be changed.")
@json_option
@application_options
def apply(*, application: Later, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Set what an application's handlers wish of their topics' policies, and put the schedules that they declare.

    Shows what differs, and asks. For a deployment: handlers set nothing by themselves, because operators do so, too.
    Fields that no handler wishes stay as they are, and schedules that no handler declares are named.
    """
    differing = _differences(application)
    if not as_json:
        _print_differences(differing)
    is_applied = differing.total > 0 and not dry_run and _may_apply(differing, yes=yes)
    if is_applied:
        _apply(application, differing)
    if as_json:
        shown = {
            "policies": [change._asdict() for change in differing.policies],
            "schedules": [change._asdict() for change in differing.schedules],
            "undeclared": differing.undeclared,
            "applied": is_applied,
        }
        print(json.dumps(shown, default=_format_time))
    elif is_applied:
        print(f"{differing} set")
    return 0 if is_applied or dry_run or not differing.total else 1


class Differences(NamedTuple):
    """The fields of policies and schedules that differ from what handlers say, and the schedules that none declares."""

    policies: Sequence[PolicyChange]
    schedules: Sequence[ScheduleChange]
    undeclared: Sequence[str]

    @property
    def total(self) -> int:
        return len(self.policies) + len(self.schedules)

    def __str__(self) -> str:
        """`3 fields of 1 topic, 2 of 1 schedule`."""
        topics = len({change.topic for change in self.policies})
        schedules = len({change.id for change in self.schedules})
        counts = [(len(self.policies), topics, "topic"), (len(self.schedules), schedules, "schedule")]
        parts = [f"{_plural(fields, 'field')} of {_plural(count, name)}" for fields, count, name in counts if fields]
        return " and ".join(parts)


def _differences(application: Later) -> Differences:
    """Compare what handlers say with what applies. Raises LaterError, also if a declaration is wrong."""
    policies = application.apply_policies_sync(dry_run=True)
    try:
        schedules = application.apply_schedules_sync(dry_run=True)
    except (TypeError, ValueError) as error:
        raise LaterError(str(error)) from None
    return Differences(policies, schedules, [found.id for found in application.undeclared_schedules_sync()])


def _print_differences(differing: Differences) -> None:
    if differing.policies:
        rows = [
            (change.topic, change.field, _format_policy(change.field, change.before),
             _format_policy(change.field, change.after))
            for change in differing.policies
        ]  # fmt: skip
        print_text_table(("topic", "field", "now", "wish"), rows)
    if differing.schedules:
        if differing.policies:
            print()
        rows = [
            (change.id, change.field, _format_value(change.field, change.before),
             _format_value(change.field, change.after))
            for change in differing.schedules
        ]  # fmt: skip
        print_text_table(("schedule", "field", "now", "wish"), rows)
    if not differing.total:
        print("all policies and schedules are as the handlers wish")
    for id in differing.undeclared:
        notify(f"no handler declares the schedule {id} of its topic: `later schedules delete {id}` ends it")


def _format_policy(field: str, value: object) -> str:
    return "-" if value is None else format_field(field, value)


def _format_value(field: str, value: Any) -> str:
    """Format a field's value of a schedule."""
    if value is None:
        return "-"
    if field in ("every", "jitter", "ttl", "remember"):
        return duration_literal(value)
    text = _format_time(value) if isinstance(value, datetime) else str(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"


def _format_time(time: datetime) -> str:
    return time.isoformat()


def _may_apply(differing: Differences, *, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError("No terminal to ask on: use --yes to set without asking, or --dry-run to set nothing.")
    if click.confirm(f"set {differing}?", err=True):
        return True
    notify("nothing was set")
    return False


def _apply(application: Later, differing: Differences) -> None:
    """Set the policies first: they say whether a topic's schedules have a callback."""
    for topic, fields in fields_to_set(differing.policies):
        try:
            settings = application.client_sync.set_policy(topic, fields)
        except LaterError as error:
            raise LaterError(f"{topic}: {error}") from None
        if (warning := settings.get("warning")) is not None:
            notify(f"{topic}: warning: {warning}")
    if differing.schedules:
        application.apply_schedules_sync()


def _plural(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"
