"""The commands of the groups `topics` and `namespaces`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import urlencode

import click

from later.cli.api_paths import policy_path, scope_path
from later.cli.commands import mass_actions
from later.cli.commands.listing import STATES
from later.cli.console import notify, printable
from later.cli.groups import OrderedGroup
from later.cli.options import (
    MAX_LISTED,
    ActionOptions,
    action_options,
    client_options,
    examples,
    json_lines_option,
    json_option,
)
from later.cli.policy_options import field_flag_options, field_value_options, format_field
from later.cli.tables import print_number_table, print_text_table
from later.client.http import ApiClient
from later.core.explain import format_duration
from later.core.policy_scopes import PolicyScope, namespace_scope, topic_scope
from later.store.keys import Bucket

PURGEABLE = tuple(bucket.value for bucket in Bucket if bucket is not Bucket.UNACK)
"""States whose tasks can be purged: all but that of tasks in flight."""
PAGE_SIZE = 1000
"""Topics per request."""
COUNTS = (*STATES, "due")
"""The fields of an answer that are a topic's counts."""


# Topics


@click.group(cls=OrderedGroup)
def topics() -> None:
    """Show, pause and purge topics, and set their policies.

    A topic's policy says how its tasks are delivered. Each field comes from the topic, or else from its namespace, or
    else from the daemon's options. A topic need not be declared: its policy can be set before its first task exists.
    """


@topics.command("list", epilog=examples("later topics list", "later topics list --namespace shop --json"))
@click.option("--namespace", metavar="TEXT", help="Only topics of this namespace.  [default: all]")
@click.option(
    "--limit", type=click.IntRange(1, MAX_LISTED), metavar="NUMBER", help="Topics listed at most.  [default: all]"
)
@json_lines_option
@client_options
def list_topics(*, client: ApiClient, namespace: str | None, limit: int | None, as_json: bool) -> int:
    """List topics with the counts of their tasks.

    Shows how many tasks are in each state, how many are due, how late the oldest due task is, and what holds those
    that are due: `pause`, `rate`, `concurrency`, `receiver` or `pull`.
    """
    found = _fetch_topics(client, namespace)
    if as_json:
        for topic in islice(found, limit):
            print(json.dumps(topic))
        return 0
    listed = list(found if limit is None else islice(found, limit + 1))
    _print_counts(listed[:limit])
    if len(listed) > len(listed[:limit]):
        print("… and more")
    return 0


def _fetch_topics(client: ApiClient, namespace: str | None) -> Iterator[dict[str, Any]]:
    parameters = {"limit": str(PAGE_SIZE)} | ({} if namespace is None else {"namespace": namespace})
    while True:
        page = client.ask("GET", f"/topics?{urlencode(parameters, errors='surrogateescape')}")
        yield from page["topics"]
        if page["cursor"] is None:
            return
        parameters["cursor"] = page["cursor"]


def _print_counts(counts: list[dict[str, Any]]) -> None:
    rows = []
    for topic in counts:
        late_s = topic["oldest_lateness_s"]
        late = "-" if late_s is None else format_duration(round(late_s * 1000))
        rows.append([topic["topic"], *(str(topic[name]) for name in COUNTS), late, _held_by(topic)])
    print_number_table(("topic", *COUNTS, "oldest late by", "held by"), rows)


def _held_by(topic: dict[str, Any]) -> str:
    """Return what holds a topic, or its due tasks; `-` if nothing does, or an older daemon does not say it."""
    held = "pause" if topic.get("paused") else topic.get("held", "no")
    return "-" if held == "no" else str(held)


@topics.command("show", epilog=examples("later topics show order", "later topics show shop/order --applied"))
@click.argument("topic")
@click.option("--applied", is_flag=True, help="Show every field that applies, and the level that sets it.")
@json_option
@client_options
def show_topic(*, client: ApiClient, topic: str, applied: bool, as_json: bool) -> int:
    """Show the counts and the policy of a topic.

    Shows the fields that are set for the topic itself; with --applied, all fields that apply to it.
    """
    scope = topic_scope(topic)
    counts = client.ask("GET", scope_path(scope))
    del counts["policy"]  # the effective policy, but without the levels that set its fields
    if not as_json:
        _print_counts([counts])
        print()
    return _show_policy(client, scope, counts, applied=applied, as_json=as_json)


@topics.command(
    "set",
    epilog=examples("later topics set order --max-delay 7d --default-delay 15s", "later topics set order --rate 50"),
)
@click.argument("topic")
@field_value_options
@json_option
@client_options
def set_topic(*, client: ApiClient, topic: str, as_json: bool, **fields: Any) -> int:
    """Set fields of a topic's policy.

    Other fields stay as they are. Prints the fields that are set for the topic.
    """
    return _set_fields(client, topic_scope(topic), fields, as_json=as_json)


@topics.command("unset", epilog=examples("later topics unset order --max-delay", "later topics unset order"))
@click.argument("topic")
@field_flag_options
@json_option
@client_options
def unset_topic(*, client: ApiClient, topic: str, as_json: bool, **fields: Any) -> int:
    """Remove fields of a topic's policy, or all of it.

    Without any field's option, the WHOLE policy of the topic is removed; its tasks stay. Fields that are removed are
    inherited again. Prints the fields that are still set for the topic.
    """
    return _unset_fields(client, topic_scope(topic), fields, as_json=as_json)


@topics.command("pause", epilog=examples("later topics pause order"))
@click.argument("topic")
@json_option
@client_options
def pause_topic(*, client: ApiClient, topic: str, as_json: bool) -> int:
    """Stop the deliveries of a topic.

    Takes effect on all instances within two seconds. Deliveries in flight finish; tasks can still be created, and a
    task's ttl keeps running. The same as `topics set TOPIC --paused on`.
    """
    return _print_paused(client.ask("POST", scope_path(topic_scope(topic)) + "/pause", {}), as_json=as_json)


@topics.command("resume", epilog=examples("later topics resume order"))
@click.argument("topic")
@json_option
@client_options
def resume_topic(*, client: ApiClient, topic: str, as_json: bool) -> int:
    """Resume the deliveries of a paused topic.

    Their rate rises gradually, over the topic's ramp. A topic of a paused namespace is resumed, too; the namespace
    stays paused for its other topics.
    """
    return _print_paused(client.ask("POST", scope_path(topic_scope(topic)) + "/resume", {}), as_json=as_json)


def _print_paused(answer: dict[str, Any], *, as_json: bool) -> int:
    state = "is paused" if answer["paused"] else "is not paused"
    print(json.dumps(answer) if as_json else printable(f"the topic {answer['topic']} {state}"))
    return 0


@topics.command("purge", epilog=examples("later topics purge order", "later topics purge order --state error --yes"))
@click.argument("topic")
@click.option("--state", "states", type=click.Choice(PURGEABLE), multiple=True,
              help="Only tasks in this state; repeatable.  [default: all three]")  # fmt: skip
@action_options
@client_options
def purge_topic(*, client: ApiClient, topic: str, states: tuple[str, ...], options: ActionOptions) -> int:
    """Remove a topic's tasks for good.

    Tasks in flight stay, and so does the topic's policy. The ids are forgotten and can be created again. Asks for
    confirmation. Tasks are removed in chunks of 5,000; if the command is interrupted, run it again to continue.
    """
    return mass_actions.purge_topic(
        client, topic, [state for state in PURGEABLE if state in (states or PURGEABLE)], options
    )


# Namespaces


@click.group(cls=OrderedGroup)
def namespaces() -> None:
    """Set the policies of namespaces.

    The topic shop/order is in the namespace shop; a topic without a / is in the namespace default.
    """


@namespaces.command("show", epilog=examples("later namespaces show shop", "later namespaces show shop --applied"))
@click.argument("namespace")
@click.option("--applied", is_flag=True, help="Show every field that applies, and the level that sets it.")
@json_option
@client_options
def show_namespace(*, client: ApiClient, namespace: str, applied: bool, as_json: bool) -> int:
    """Show the policy of a namespace.

    Shows the fields that are set for the namespace itself; with --applied, all fields that its topics inherit.
    """
    scope = namespace_scope(namespace)
    return _show_policy(client, scope, _scope_json(scope), applied=applied, as_json=as_json)


@namespaces.command("set", epilog=examples("later namespaces set shop --max-delay 1d --retry 5"))
@click.argument("namespace")
@field_value_options
@json_option
@client_options
def set_namespace(*, client: ApiClient, namespace: str, as_json: bool, **fields: Any) -> int:
    """Set fields of a namespace's policy.

    Other fields stay as they are. Prints the fields that are set for the namespace.
    """
    return _set_fields(client, namespace_scope(namespace), fields, as_json=as_json)


@namespaces.command("unset", epilog=examples("later namespaces unset shop --retry", "later namespaces unset shop"))
@click.argument("namespace")
@field_flag_options
@json_option
@client_options
def unset_namespace(*, client: ApiClient, namespace: str, as_json: bool, **fields: Any) -> int:
    """Remove fields of a namespace's policy, or all of it.

    Without any field's option, the WHOLE policy of the namespace is removed; the policies of its topics stay. Fields
    that are removed are inherited again. Prints the fields that are still set for the namespace.
    """
    return _unset_fields(client, namespace_scope(namespace), fields, as_json=as_json)


# Policies


def _set_fields(client: ApiClient, scope: PolicyScope, fields: Mapping[str, Any], *, as_json: bool) -> int:
    changes = {name: value for name, value in fields.items() if value is not None}
    if not changes:
        raise click.UsageError("Nothing to set: give at least one field, as in --max-delay 7d.")
    policy = client.ask("PATCH", policy_path(scope), changes)
    return _print_settings(scope, _scope_json(scope), policy, as_json=as_json)


def _unset_fields(client: ApiClient, scope: PolicyScope, fields: Mapping[str, Any], *, as_json: bool) -> int:
    changes = {name: None for name, is_given in fields.items() if is_given}
    method = "PATCH" if changes else "DELETE"
    policy = client.ask(method, policy_path(scope), changes or None)
    return _print_settings(scope, _scope_json(scope), policy, as_json=as_json)


def _show_policy(
    client: ApiClient, scope: PolicyScope, scope_json: dict[str, Any], *, applied: bool, as_json: bool
) -> int:
    """Print the fields that are set for the scope, or its effective policy. A JSON object begins with `scope_json`."""
    if not applied:
        return _print_settings(scope, scope_json, client.ask("GET", policy_path(scope)), as_json=as_json)
    policy = client.ask("GET", policy_path(scope) + "?applied=true")
    if as_json:
        print(json.dumps(scope_json | {"applied": policy}))
    else:
        rows = [(name, format_field(name, field["value"]), field["level"]) for name, field in policy.items()]
        print_text_table(("field", "value", "from"), rows)
    return 0


def _print_settings(scope: PolicyScope, scope_json: dict[str, Any], settings: dict[str, Any], *, as_json: bool) -> int:
    if (warning := settings.pop("warning", None)) is not None:
        notify(f"warning: {warning}")
    if as_json:
        print(json.dumps(scope_json | {"set": settings}))
    elif settings:
        print_text_table(("field", "value"), [(name, format_field(name, value)) for name, value in settings.items()])
    else:
        print(printable(f"nothing is set for the {scope.level} {scope.name}: all fields are inherited"))
    return 0


def _scope_json(scope: PolicyScope) -> dict[str, Any]:
    return {str(scope.level): scope.name}
