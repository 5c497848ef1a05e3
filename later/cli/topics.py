"""`topics` and `namespaces`: what a shell asks of policies and tells a running API, and how the answer is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode

from later.cli.console import one_line
from later.cli.policy_options import shown
from later.cli.tables import print_figures, print_words, seconds
from later.client.http import Client
from later.core.policy import PolicyValue
from later.core.policy_scopes import PolicyScope, namespace_scope, topic_scope

PAGE = 1000
"""How many topics are asked for at once."""
COUNTS = ("delay", "unack", "error", "dead", "due")


# Topics


def list_topics(client: Client, *, namespace: str | None, limit: int | None, as_json: bool) -> int:
    """Print every topic, or the first `limit`, with its counts. Raises CallFailed."""
    topics = _topics(client, namespace)
    if as_json:
        for topic in islice(topics, limit):
            print(json.dumps(topic))
        return 0
    found = list(topics if limit is None else islice(topics, limit + 1))
    _print_counts(found[:limit])
    if len(found) > len(found[:limit]):
        print("… and more")
    return 0


def _topics(client: Client, namespace: str | None) -> Iterator[dict[str, Any]]:
    asked = {"limit": str(PAGE)} | ({} if namespace is None else {"namespace": namespace})
    cursor: str | None = None
    while True:
        query = urlencode(asked if cursor is None else asked | {"cursor": cursor}, errors="surrogateescape")
        page = client.ask("GET", f"/topics?{query}")
        yield from page["topics"]
        cursor = page["cursor"]
        if cursor is None:
            return


def show_topic(client: Client, name: str, *, applied: bool, as_json: bool) -> int:
    """Print a topic's counts, and what it sets or, if `applied`, all that applies to it. Raises CallFailed."""
    topic = counts(client, name)
    del topic["policy"]  # what applies, without where it comes from
    if not as_json:
        _print_counts([topic])
        print()
    return _show(client, topic_scope(name), topic, applied=applied, as_json=as_json)


def _print_counts(topics: list[dict[str, Any]]) -> None:
    rows = [[topic["topic"], *(str(topic[name]) for name in COUNTS), _late(topic)] for topic in topics]
    print_figures(("topic", *COUNTS, "oldest late by"), rows)


def _late(topic: Mapping[str, Any]) -> str:
    late_s = topic["oldest_lateness_s"]
    return "-" if late_s is None else seconds(round(late_s * 1000))


def counts(client: Client, name: str) -> dict[str, Any]:
    """A topic's name and how many tasks are in each state. Raises CallFailed."""
    return client.ask("GET", _path(topic_scope(name)))


def purge_path(name: str) -> str:
    return _path(topic_scope(name)) + "/purge"


# Policies


def pause(client: Client, topic: str, *, as_json: bool) -> int:
    """Let nothing of a topic be delivered. Raises CallFailed."""
    return _print_paused(client.ask("POST", _path(topic_scope(topic)) + "/pause", {}), as_json=as_json)


def resume(client: Client, topic: str, *, as_json: bool) -> int:
    """Let a topic be delivered again. Raises CallFailed."""
    return _print_paused(client.ask("POST", _path(topic_scope(topic)) + "/resume", {}), as_json=as_json)


def _print_paused(answer: dict[str, Any], *, as_json: bool) -> int:
    state = "is paused" if answer["paused"] else "is not paused"
    print(json.dumps(answer) if as_json else one_line(f"the topic {answer['topic']} {state}"))
    return 0


def show_namespace(client: Client, name: str, *, applied: bool, as_json: bool) -> int:
    """Print what a namespace sets or, if `applied`, all that applies to it. Raises CallFailed."""
    place = namespace_scope(name)
    return _show(client, place, _named(place), applied=applied, as_json=as_json)


def change(client: Client, place: PolicyScope, fields: Mapping[str, PolicyValue | None], *, as_json: bool) -> int:
    """Set fields, those that are None to be inherited; print what is set then. Raises CallFailed."""
    policy = client.ask("PATCH", _policy(place), fields)
    _print_set(place, _named(place), policy, as_json=as_json)
    return 0


def clear(client: Client, place: PolicyScope, *, as_json: bool) -> int:
    """Remove all that is set. Raises CallFailed."""
    policy = client.ask("DELETE", _policy(place))
    _print_set(place, _named(place), policy, as_json=as_json)
    return 0


def _show(client: Client, place: PolicyScope, told: dict[str, Any], *, applied: bool, as_json: bool) -> int:
    """`told` is what a machine is told of it besides."""
    if applied:
        _print_applied(told, client.ask("GET", _policy(place) + "?applied=true"), as_json=as_json)
    else:
        _print_set(place, told, client.ask("GET", _policy(place)), as_json=as_json)
    return 0


def _print_set(place: PolicyScope, told: dict[str, Any], policy: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(told | {"set": policy}))
    elif policy:
        print_words(("field", "value"), [(name, shown(name, value)) for name, value in policy.items()])
    else:
        print(one_line(f"nothing is set for the {place.level} {place.name}: all is inherited"))


def _print_applied(told: dict[str, Any], policy: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(told | {"applied": policy}))
        return
    rows = [(name, shown(name, field["value"]), field["level"]) for name, field in policy.items()]
    print_words(("field", "value", "from"), rows)


def _named(place: PolicyScope) -> dict[str, Any]:
    return {str(place.level): place.name}


# Where they are


def _path(place: PolicyScope) -> str:
    """Percent-encoded whole; what is no Unicode goes as the bytes that it came as, for the daemon to refuse."""
    return f"/{place.level}s/{quote(place.name, safe='', errors='surrogateescape')}"


def _policy(place: PolicyScope) -> str:
    return _path(place) + "/policy"
