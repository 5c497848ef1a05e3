"""The command `secrets`: shows and rotates the secrets that sign deliveries."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import click

from later.cli.console import notify
from later.cli.groups import OrderedGroup
from later.cli.options import DURATION, config_options, examples, json_lines_option, json_option
from later.cli.store_access import load_config, run_with_store, this_user
from later.cli.tables import print_text_table
from later.core.audit_event import AuditAction, AuditEvent, AuditOutcome
from later.core.clock import rfc3339
from later.core.errors import Conflict, NoSigningKey
from later.core.origin import Origin
from later.core.policy import Sign, plain_number
from later.core.policy_scopes import Level, namespace_scope, topic_scope
from later.core.signing import MAX_OVERLAP_S, Generation, KeyRing, SecretScope, make_master, origin_scope
from later.core.validation import DEFAULT_NAMESPACE, check_namespace, parse_topic
from later.daemon.signing_key import read_masters
from later.store.open import Store

COMMAND = "secrets"

ALL_OTHERS = "all others"
"""The name of all namespaces, topics and origins that were not rotated by themselves."""


@click.group(cls=OrderedGroup)
def secrets() -> None:
    """Show and rotate the secrets that sign deliveries.

    Each delivery is signed with the secret of its namespace, its topic or the origin of its callback, as the field
    `sign` of its policy says. Secrets are derived from a signing key, a file outside the store.
    """


@secrets.command("init", epilog=examples("later secrets init > signing.key"))
def init() -> int:
    """Print a new signing key.

    Keep it in a file that nobody else can read, apart from the data, and give it to all daemons: --signing-key FILE.
    `later up` makes one by itself for its own store.
    """
    print(make_master().text)
    return 0


def scope_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options that choose a secret."""
    for option in (
        click.option("--url", metavar="URL", help="The secret of the origin (scheme, host, port) of this callback."),
        click.option("--topic", metavar="TEXT", help="The secret of this topic."),
        click.option(
            "--namespace",
            metavar="TEXT",
            help="The secret of this namespace; with --url, of the origin in this namespace.  [default: default]",
        ),
    ):
        command = option(command)
    return command


@secrets.command(
    "show",
    epilog=examples(
        "later secrets show --data ./later-data",
        "later secrets show --topic shop/order",
        "later secrets show --namespace shop --url https://shop.example/hook",
    ),
)
@scope_options
@json_option
@config_options(COMMAND)
def show(*, namespace: str | None, topic: str | None, url: str | None, as_json: bool, **flags: str | None) -> int:
    """Print the present secret, which receivers verify with.

    With --json, all that sign: during the overlap of a rotation, the older ones, too.
    """
    scope = _parse_scope(namespace, topic, url)

    async def print_secret(store: Store) -> int:
        now = (await store.time.now()).low
        ring = await store.signing.read()
        found = ring.secrets(scope, now)
        if not found:
            raise NoSigningKey("there is no signing key: --signing-key FILE, or --data of a `later up`")
        await _notify_if_unused(store, scope)
        await _notify_if_foreign(store, scope)
        live = [generation for generation in ring.generations(scope) if generation.is_live(now)]
        known = [generation for generation in live if ring.has_master_of(generation)]
        if as_json:
            pairs = zip(known, found, strict=True)
            shown = [{**_generation_json(generation), "secret": secret.text} for generation, secret in pairs]
            print(json.dumps({"of": str(scope), "secrets": shown}))
        else:
            print(found[0].text)
        return 0

    return _run(flags, print_secret)


async def _notify_if_foreign(store: Store, scope: SecretScope) -> None:
    """Say so if workers sign with a secret of another signing key than this command's."""
    other = await store.signing.foreign_default_master()
    if other is not None and scope not in store.signing.latest.rotated:
        ours = store.signing.latest.masters[-1].fingerprint
        notify(f"workers on this store sign by the signing key {other}, not by {ours}: this is not their secret")


async def _notify_if_unused(store: Store, scope: SecretScope) -> None:
    """Say so if the policies in the store have deliveries of a topic, namespace or origin signed otherwise."""
    policies = await store.policies.read()
    level = topic_scope(scope.name) if scope.level is Sign.TOPIC else namespace_scope(scope.namespace)
    sign = policies.for_scope(level).sign
    if sign is not scope.level:
        unless = (
            ""
            if policies.level_of(level, "sign") is not Level.DAEMON
            else f", unless the daemons have --sign {scope.level}"
        )
        notify(f"{scope} is signed by `sign` {sign}{unless}: this is not its secret")


@secrets.command(
    "rotate",
    epilog=examples(
        "later secrets rotate --namespace shop",
        "later secrets rotate --topic shop/order --overlap 7d",
        "later secrets rotate --namespace shop --url https://shop.example/ --overlap 0",
        "later secrets rotate --all",
    ),
)
@scope_options
@click.option("--all", "all_scopes", is_flag=True, help="All secrets, also of what was never called yet.")
@click.option(
    "--overlap",
    type=DURATION,
    default="24h",
    show_default=True,
    help="How long older secrets go on signing: up to 30d.",
)
@json_option
@config_options(COMMAND)
def rotate(
    *,
    namespace: str | None,
    topic: str | None,
    url: str | None,
    all_scopes: bool,
    overlap: float,
    as_json: bool,
    **flags: str | None,
) -> int:
    """Make a new secret, and print it.

    Until the overlap ends, deliveries are signed with the old one, too. With --overlap 0, all older ones end at once.
    Daemons sign with the new one within 2.5 seconds.
    """
    if all_scopes == any(value is not None for value in (namespace, topic, url)):
        raise click.UsageError("Give one of --namespace, --topic, --url and --all.")
    if overlap > MAX_OVERLAP_S:
        raise click.UsageError("--overlap: expected a duration from 0 to 30d.")
    scope = None if all_scopes else _parse_scope(namespace, topic, url)

    async def make_secret(store: Store) -> int:
        ring = await _rotate(store, scope, round(overlap * 1000))
        if scope is not None:
            await _notify_if_unused(store, scope)
        newest, *older = ring.generations(scope)
        found = None if scope is None else ring.secrets(scope, newest.since or 0)[0].text
        until = max((generation.until or 0 for generation in older), default=0)
        if as_json:
            shown = {**_generation_json(newest), "older_until": rfc3339(until) if until else None}
            print(json.dumps({"of": str(scope or ALL_OTHERS), **shown, **({"secret": found} if found else {})}))
            return 0
        if found is not None:
            print(found)
        subject = (
            "all secrets are new; `later secrets show` prints them" if scope is None else f"a new secret of {scope}"
        )
        notify(f"{subject}; older ones {f'go on signing until {rfc3339(until)}' if until else 'have ended'}")
        return 0

    return _run(flags, make_secret)


async def _rotate(store: Store, scope: SecretScope | None, overlap_ms: int) -> KeyRing:
    """Rotate a secret, or all, and record that."""
    details: dict[str, Any] = {"of": str(scope or "all"), "overlap": plain_number(overlap_ms / 1000)}
    namespace = None if scope is None else scope.namespace
    outcome = AuditOutcome.UNKNOWN
    try:
        if scope is None:
            ring = await store.signing.rotate_all(overlap_ms)
        else:
            ring = await store.signing.rotate(scope, overlap_ms)
        outcome, details["generation"] = AuditOutcome.DONE, ring.generations(scope)[0].g
    except Conflict:
        outcome = AuditOutcome.REFUSED
        raise
    finally:
        store.audit_trail.record(
            AuditEvent(
                action=AuditAction.SIGNING_ROTATED,
                key=this_user(),
                namespace=namespace,
                outcome=outcome,
                details=details,
            )
        )
    return ring


@secrets.command("list", epilog=examples("later secrets list", "later secrets list --json"))
@json_lines_option
@config_options(COMMAND)
def list_secrets(*, as_json: bool, **flags: str | None) -> int:
    """List what was rotated, with the generations that sign.

    Shows of each generation when it began and ends, and the fingerprint of its signing key. Never prints a secret.
    """

    async def print_generations(store: Store) -> int:
        now = (await store.time.now()).low
        ring = await store.signing.read()
        rows = [(str(scope), generation) for scope in sorted(ring.rotated) for generation in ring.generations(scope)]
        rows += [(ALL_OTHERS, generation) for generation in ring.generations(None)]
        rows = [(name, generation) for name, generation in rows if generation.is_live(now)]
        if as_json:
            for name, generation in rows:
                print(
                    json.dumps({"of": name, **_generation_json(generation), "has_key": ring.has_master_of(generation)})
                )
            return 0
        print_text_table(
            ("secret of", "generation", "since", "until", "key"),
            [
                (
                    name,
                    str(generation.g),
                    "-" if generation.since is None else rfc3339(generation.since),
                    "-" if generation.until is None else rfc3339(generation.until),
                    generation.master + ("" if ring.has_master_of(generation) else " (missing)"),
                )
                for name, generation in rows
            ],
        )
        return 0

    return _run(flags, print_generations)


def _run(flags: Mapping[str, str | None], work: Callable[[Store], Awaitable[int]]) -> int:
    """Run a command on the store, with the signing key that the options name. Returns the exit status."""
    config = load_config(COMMAND, flags)
    masters = read_masters(config)

    async def with_masters(store: Store) -> int:
        store.signing.use_masters(masters)
        return await work(store)

    return run_with_store(config, with_masters)


def _parse_scope(namespace: str | None, topic: str | None, url: str | None) -> SecretScope:
    """Return what the options name. Raises Refused, or UsageError if they do not go together."""
    if topic is not None and (namespace is not None or url is not None):
        raise click.UsageError("--topic goes with neither --namespace nor --url.")
    if topic is not None:
        return SecretScope(Sign.TOPIC, parse_topic(topic))
    name = check_namespace(DEFAULT_NAMESPACE if namespace is None else namespace)
    if url is None:
        return SecretScope(Sign.NAMESPACE, name)
    try:
        return origin_scope(name, Origin.of(url))
    except ValueError as error:
        raise click.UsageError(f"--url: {error}.") from None


def _generation_json(generation: Generation) -> dict[str, Any]:
    return {
        "generation": generation.g,
        "since": None if generation.since is None else rfc3339(generation.since),
        "until": None if generation.until is None else rfc3339(generation.until),
        "key": generation.master,
    }
