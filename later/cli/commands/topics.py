"""The commands of `topics` and `namespaces`. Each imports its heavy half when it runs."""
# ruff: noqa: PLC0415  # that is why: what help needs is little

from __future__ import annotations

from typing import Any

import click

from later.cli.options import (
    CALL,
    MOST,
    InOrder,
    Manner,
    an_object_a_line,
    client_of,
    configured,
    examples,
    of_many,
    one_object,
)
from later.cli.policy_options import names_of_fields, values_of_fields
from later.core.policy import FIELDS
from later.core.policy_scopes import PolicyScope, namespace_scope, topic_scope

PURGEABLE = ("delay", "error", "dead")
"""The states that tasks are purged from: where nothing is in flight."""


@click.group("topics", cls=InOrder)
def of_topics() -> None:
    """See topics, set what they allow, pause and empty them.

    What a topic allows is its policy. Each field of it is taken from the topic, else from its namespace, else from the
    daemon's options. A topic needs no declaring: its policy may be set before its first task.
    """


@of_topics.command("list", epilog=examples("later topics list", "later topics list --namespace shop --json"))
@click.option("--namespace", metavar="TEXT", help="Those of this namespace.  [default: all]")
@click.option("--limit", type=click.IntRange(1, MOST), help="So many at most.  [default: all]")
@an_object_a_line
@configured(CALL)
def list_topics(*, namespace: str | None, limit: int | None, as_json: bool, **flags: str | None) -> int:
    """Show every topic with its tasks.

    By state, with how many are due, and how late the oldest of those is.
    """
    client = client_of(flags)
    from later.cli import topics

    return topics.list_topics(client, namespace=namespace, limit=limit, as_json=as_json)


@of_topics.command("show", epilog=examples("later topics show order", "later topics show shop/order --applied"))
@click.argument("topic")
@click.option("--applied", is_flag=True, help="Show every field as it applies, and the level that it is from.")
@one_object
@configured(CALL)
def show_topic(*, topic: str, applied: bool, as_json: bool, **flags: str | None) -> int:
    """Show a topic's tasks and its policy.

    Of the policy, what is set for the topic itself; with --applied, all that applies to it.
    """
    client = client_of(flags)
    from later.cli import topics

    return topics.show_topic(client, topic, applied=applied, as_json=as_json)


@of_topics.command(
    "set",
    epilog=examples("later topics set order --max-delay 7d --default-delay 15s", "later topics set order --rate 50"),
)
@click.argument("topic")
@values_of_fields
@one_object
@configured(CALL)
def set_topic(*, topic: str, as_json: bool, **options: Any) -> int:
    """Set fields of a topic's policy.

    What is not given stays as it is. Prints what is set for the topic then.
    """
    return _set(topic_scope(topic), options, as_json=as_json)


@of_topics.command("unset", epilog=examples("later topics unset order --max-delay", "later topics unset order"))
@click.argument("topic")
@names_of_fields
@one_object
@configured(CALL)
def unset_topic(*, topic: str, as_json: bool, **options: Any) -> int:
    """Remove fields of a topic's policy, or all of it.

    Without the option of any field, the WHOLE policy of the topic is removed; its tasks stay. What is removed is
    inherited again. Prints what is set for the topic then.
    """
    return _unset(topic_scope(topic), options, as_json=as_json)


@of_topics.command("pause", epilog=examples("later topics pause order"))
@click.argument("topic")
@one_object
@configured(CALL)
def pause_topic(*, topic: str, as_json: bool, **flags: str | None) -> int:
    """Deliver nothing more of a topic.

    Within two seconds, on all instances. Deliveries under way finish; creating goes on, and tasks go on growing too
    old. The same as `topics set TOPIC --paused on`.
    """
    client = client_of(flags)
    from later.cli import topics

    return topics.pause(client, topic, as_json=as_json)


@of_topics.command("resume", epilog=examples("later topics resume order"))
@click.argument("topic")
@one_object
@configured(CALL)
def resume_topic(*, topic: str, as_json: bool, **flags: str | None) -> int:
    """Deliver a paused topic again.

    Slowly at first, by its ramp. Also where its namespace is paused, which stays so for the other topics.
    """
    client = client_of(flags)
    from later.cli import topics

    return topics.resume(client, topic, as_json=as_json)


@of_topics.command("purge", epilog=examples("later topics purge order", "later topics purge order --state error --yes"))
@click.argument("topic")
@click.option("--state", "states", type=click.Choice(PURGEABLE), multiple=True,
              help="Only tasks in this state; repeatable.  [default: all three]")  # fmt: skip
@of_many
@configured(CALL)
def purge_topic(*, topic: str, states: tuple[str, ...], manner: Manner, **flags: str | None) -> int:
    """Remove a topic's tasks for good.

    What is in flight stays, and so does the topic's policy. The ids are forgotten: they may be created anew. Asks
    first. Goes in slices of 5,000; interrupted, the same command goes on with the rest.
    """
    client = client_of(flags)
    from later.cli.commands.mass import purge_topic

    return purge_topic(client, topic, [state for state in PURGEABLE if state in (states or PURGEABLE)], manner)


@click.group("namespaces", cls=InOrder)
def of_namespaces() -> None:
    """Set what the topics of a namespace allow.

    The namespace of shop/order is shop; that of a topic without a / is default.
    """


@of_namespaces.command("show", epilog=examples("later namespaces show shop", "later namespaces show shop --applied"))
@click.argument("namespace")
@click.option("--applied", is_flag=True, help="Show every field as it applies, and the level that it is from.")
@one_object
@configured(CALL)
def show_namespace(*, namespace: str, applied: bool, as_json: bool, **flags: str | None) -> int:
    """Show a namespace's policy.

    What is set for the namespace itself; with --applied, all that applies to its topics where they set nothing.
    """
    client = client_of(flags)
    from later.cli import topics

    return topics.show_namespace(client, namespace, applied=applied, as_json=as_json)


@of_namespaces.command("set", epilog=examples("later namespaces set shop --max-delay 1d --retry 5"))
@click.argument("namespace")
@values_of_fields
@one_object
@configured(CALL)
def set_namespace(*, namespace: str, as_json: bool, **options: Any) -> int:
    """Set fields of a namespace's policy.

    What is not given stays as it is. Prints what is set for the namespace then.
    """
    return _set(namespace_scope(namespace), options, as_json=as_json)


@of_namespaces.command("unset", epilog=examples("later namespaces unset shop --retry", "later namespaces unset shop"))
@click.argument("namespace")
@names_of_fields
@one_object
@configured(CALL)
def unset_namespace(*, namespace: str, as_json: bool, **options: Any) -> int:
    """Remove fields of a namespace's policy, or all of it.

    Without the option of any field, the WHOLE policy of the namespace is removed; those of its topics stay. What is
    removed is inherited again. Prints what is set for the namespace then.
    """
    return _unset(namespace_scope(namespace), options, as_json=as_json)


def _set(place: PolicyScope, options: dict[str, Any], *, as_json: bool) -> int:
    fields = {name: options.pop(name) for name in FIELDS}
    given = {name: value for name, value in fields.items() if value is not None}
    if not given:
        raise click.UsageError("Nothing to set: give at least one field, as in --max-delay 7d.")
    client = client_of(options)
    from later.cli import topics

    return topics.change(client, place, given, as_json=as_json)


def _unset(place: PolicyScope, options: dict[str, Any], *, as_json: bool) -> int:
    named = dict.fromkeys(name for name in FIELDS if options.pop(name))
    client = client_of(options)
    from later.cli import topics

    if not named:
        return topics.clear(client, place, as_json=as_json)
    return topics.change(client, place, named, as_json=as_json)
