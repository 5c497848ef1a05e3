"""The commands of the group `handlers`: those of an application, and what they wish of policies."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from later.application import Later
from later.cli.application_option import (
    ABOUT_APPLICATION,
    application_argument,
    application_options,
    load_application,
)
from later.cli.console import notify, printable
from later.cli.groups import OrderedGroup
from later.cli.options import examples, json_lines_option, json_option
from later.cli.policy_options import format_field
from later.cli.tables import print_text_table
from later.core.durations import duration_literal
from later.core.errors import LaterError
from later.handlers.handler import Handler
from later.handlers.policy_wishes import PolicyChange, check_wish, fields_to_set

ABOUT_MODULE = (
    "APP is MODULE:ATTRIBUTE, such as shop.tasks:tasks: a Later, or a function that returns one. The module is "
    "imported from the current directory, or from where Python finds others. Nothing is connected."
)


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

    Shows of each its topics, its payload, how many run at a time in a process, its timeout, and what it wishes of its
    topic's policy.
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
        )
        for fields in shown
    ]
    print_text_table(("topic", "aliases", "payload", "concurrency", "timeout", "wishes"), rows)
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

    Resolves the types of all payloads and dependencies, and checks the fields of policies that are wished. Says of each
    handler that is wrong what to change.
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
    """Set what an application's handlers wish of their topics' policies.

    Shows the fields that differ, and asks. For a deployment: handlers set nothing by themselves, because operators set
    policies, too. Fields that no handler wishes stay as they are.
    """
    changes = application.apply_policies_sync(dry_run=True)
    if not as_json:
        _print_changes(changes)
    is_applied = bool(changes) and not dry_run and _may_apply(changes, yes=yes)
    if is_applied:
        _set(application, changes)
    if as_json:
        print(json.dumps({"changes": [change._asdict() for change in changes], "applied": is_applied}))
    elif is_applied:
        print(f"{_count(changes)} set")
    return 0 if is_applied or dry_run or not changes else 1


def _print_changes(changes: Sequence[PolicyChange]) -> None:
    if not changes:
        print("all policies are as the handlers wish")
        return
    rows = [
        (change.topic, change.field, _format(change.field, change.before), _format(change.field, change.after))
        for change in changes
    ]
    print_text_table(("topic", "field", "now", "wish"), rows)


def _format(field: str, value: object) -> str:
    return "-" if value is None else format_field(field, value)


def _may_apply(changes: Sequence[PolicyChange], *, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError("No terminal to ask on: use --yes to set without asking, or --dry-run to set nothing.")
    if click.confirm(f"set {_count(changes)}?", err=True):
        return True
    notify("nothing was set")
    return False


def _set(application: Later, changes: Sequence[PolicyChange]) -> None:
    for topic, fields in fields_to_set(changes):
        try:
            settings = application.client_sync.set_policy(topic, fields)
        except LaterError as error:
            raise LaterError(f"{topic}: {error}") from None
        if (warning := settings.get("warning")) is not None:
            notify(printable(f"{topic}: warning: {warning}"))


def _count(changes: Sequence[PolicyChange]) -> str:
    fields, topics = len(changes), len({change.topic for change in changes})
    return f"{fields} field{'' if fields == 1 else 's'} of {topics} topic{'' if topics == 1 else 's'}"
