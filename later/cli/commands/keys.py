"""The commands of the group `keys`: they make, show and revoke the API keys of a store."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import click

from later.cli.console import notify
from later.cli.groups import OrderedGroup
from later.cli.options import DURATION, Command, OptionParamType, config_options, examples, json_option
from later.cli.store_access import load_config, run_with_new_store, run_with_own_store, this_user
from later.cli.tables import print_text_table
from later.core.api_keys import (
    ALL_SCOPES,
    ApiKey,
    Scope,
    has_key_form,
    id_in_key,
    key_digest,
    make_key_text,
)
from later.core.audit_event import AuditAction, AuditEvent
from later.core.clock import rfc3339
from later.core.errors import LaterError, Refused
from later.core.key_set import KeySet
from later.core.policy import MAX_LIMIT, MIN_RATE
from later.core.validation import check_namespace
from later.option_types import option_type, rate
from later.store.open import Store

MAX_NAME = 100
SHOWN_ONCE = "it is shown only now, and kept nowhere"


@option_type("SCOPES")
def _scopes(text: str) -> frozenset[Scope]:
    names = [name.strip() for name in text.split(",")]
    if names == ["all"]:
        return ALL_SCOPES
    if not {*names} <= {scope.value for scope in Scope}:
        raise ValueError(f"all, or some of {', '.join(Scope)} with commas between them")
    return frozenset(Scope(name) for name in names)


@option_type("TEXT")
def _namespace(text: str) -> str:
    try:
        return check_namespace(text)
    except Refused as error:
        raise ValueError(error.detail.partition("expected ")[2]) from None


@option_type("NAME")
def _name(text: str) -> str:
    if not text.isprintable() or len(text) > MAX_NAME:
        raise ValueError(f"at most {MAX_NAME} printable characters")
    return text


SCOPES, NAMESPACE, NAME = OptionParamType(_scopes), OptionParamType(_namespace), OptionParamType(_name)
RATE = OptionParamType(rate(MIN_RATE, MAX_LIMIT))


def store_options(command: Command) -> Command:
    """Give a command the options of the store."""
    return config_options("keys")(command)


@click.group(cls=OrderedGroup)
def keys() -> None:
    """Make, show and revoke API keys.

    The keys are in the store, each as its digest only. They are made at the store and by no HTTP call, so a stolen key
    cannot make another.
    """


@keys.command(
    epilog=examples(
        "later keys create shop --scopes create,read --namespace shop --expires 90d",
        "later keys create prometheus --scopes metrics",
        about="Scopes: create, read, edit (change, delete, redrive and purge tasks), admin (policies, pause and "
        "resume), claim and metrics; none of them implies another. all: all of them.",
    )
)
@click.argument("name", type=NAME, default="")
@click.option("--scopes", type=SCOPES, required=True, help="What it may do, with commas between; or all.")
@click.option("--namespace", type=NAMESPACE, help="The only namespace that it is for.  [default: all of them]")
@click.option("--expires", type=DURATION, help="How long it lasts.  [default: until it is revoked]")
@click.option("--rate", type=RATE, help="Most tasks a second, in each process of the API.  [default: no limit]")
@json_option
@store_options
def create(
    *, name: str, scopes: frozenset[Scope], namespace: str | None, expires: float | None, rate: float | None,
    as_json: bool, **flags: str | None,
) -> int:  # fmt: skip
    """Make a key and print it, once.

    NAME is for people. Every daemon takes the key at once.
    """
    text = make_key_text()

    def decide(known: KeySet, now: int) -> Mapping[str, ApiKey]:
        key = ApiKey(
            id=id_in_key(text),
            digest=key_digest(text),
            name=name,
            namespace=namespace,
            scopes=scopes,
            created_at=now,
            expires_at=None if expires is None else now + round(expires * 1000),
            rate=rate or None,
        )
        return {key.id: key}

    async def make(store: Store) -> int:
        await store.key_book.change(decide)
        key = store.key_book.latest.keys[id_in_key(text)]
        _record(store, AuditAction.KEY_MADE, key)
        _print_new_key(text, key, as_json=as_json)
        return 0

    return run_with_new_store(load_config("keys", flags), make)


@keys.command("list", epilog=examples("later keys list", "later keys list --data ./later-data"))
@json_option
@store_options
def list_keys(*, as_json: bool, **flags: str | None) -> int:
    """List the keys: what each may do, and when it was used last, to the minute."""

    async def show_all(store: Store) -> int:
        known, uses = await store.key_book.read(), await store.key_book.last_uses()
        views = [_view(key, uses, store.key_book.now()) for key in sorted(known.keys.values(), key=_by_creation)]
        if as_json:
            print(json.dumps({"keys": views}))
            return 0
        headers = ("id", "name", "scopes", "namespace", "created", "expires", "last used")
        print_text_table(headers, [_row(view) for view in views])
        return 0

    return _run(flags, show_all)


@keys.command(epilog=examples("later keys show 3fGh7Kp0"))
@click.argument("id")
@json_option
@store_options
def show(*, id: str, as_json: bool, **flags: str | None) -> int:
    """Show one key by its id, the eight characters after `later_`."""

    async def show_one(store: Store) -> int:
        key = _find(await store.key_book.read(), id)
        view = _view(key, await store.key_book.last_uses(), store.key_book.now())
        if as_json:
            print(json.dumps(view))
        else:
            print_text_table(("field", "value"), [(name, _cell(value)) for name, value in view.items()])
        return 0

    return _run(flags, show_one)


@keys.command(epilog=examples("later keys revoke 3fGh7Kp0"))
@click.argument("id")
@store_options
def revoke(*, id: str, **flags: str | None) -> int:
    """Revoke a key: every daemon refuses it within 2.5 seconds.

    When the last key is revoked, calls still need one.
    """
    revoked: list[ApiKey] = []

    def decide(known: KeySet, now: int) -> Mapping[str, None]:
        revoked[:] = [_find(known, id)]
        return {revoked[0].id: None}

    async def remove(store: Store) -> int:
        await store.key_book.change(decide)
        _record(store, AuditAction.KEY_REVOKED, revoked[0])
        print(f"revoked {revoked[0].id}")
        return 0

    return _run(flags, remove)


@keys.command(epilog=examples("later keys rotate 3fGh7Kp0 --overlap 24h"))
@click.argument("id")
@click.option("--overlap", type=DURATION, default="24h", show_default=True, help="How long the old key still works.")
@json_option
@store_options
def rotate(*, id: str, overlap: float, as_json: bool, **flags: str | None) -> int:
    """Make a key like another one, and end that one after the overlap."""
    text = make_key_text()

    def decide(known: KeySet, now: int) -> Mapping[str, ApiKey]:
        return {key.id: key for key in _find(known, id).rotate(text, now, round(overlap * 1000))}

    async def replace(store: Store) -> int:
        await store.key_book.change(decide)
        key = store.key_book.latest.keys[id_in_key(text)]
        old = _find(store.key_book.latest, id)
        _record(store, AuditAction.KEY_ROTATED, key, replaces=old.id)
        _print_new_key(text, key, as_json=as_json)
        if not as_json:
            notify(f"the key {old.id} ends at {_time(old.expires_at)}")
        return 0

    return _run(flags, replace)


@keys.command(epilog=examples("later keys make > root.key", "later up --root-key-file root.key"))
def make() -> int:
    """Print a key and store nothing: a root key, for LATER_ROOT_KEY or --root-key-file."""
    print(make_key_text())
    return 0


def _run(flags: Mapping[str, str | None], work: Callable[[Store], Awaitable[int]]) -> int:
    return run_with_own_store(load_config("keys", flags), work)


def _find(known: KeySet, id: str) -> ApiKey:
    """Return a key by its id, or by the whole key. Raises LaterError, which never shows a key."""
    is_key = has_key_form(id)
    key = known.keys.get(id_in_key(id) if is_key else id)
    if key is None:
        raise LaterError(f"no key has the id {id_in_key(id) if is_key else repr(id[:20])}: later keys list shows all")
    return key


def _record(store: Store, action: AuditAction, key: ApiKey, **details: Any) -> None:
    about = {"id": key.id, "name": key.name, "scopes": _scope_names(key.scopes), **details}
    event = AuditEvent(action=action, key=this_user(), namespace=key.namespace, details=about)
    store.audit_trail.record(event)


def _print_new_key(text: str, key: ApiKey, *, as_json: bool) -> None:
    """Print a key: alone on standard output, so that a script can take it."""
    if as_json:
        print(json.dumps({"key": text, **_view(key, {}, 0)}))
        return
    print(text)
    notify(f"the key {key.id}: {SHOWN_ONCE}")


def _by_creation(key: ApiKey) -> tuple[int, str]:
    return key.created_at, key.id


def _scope_names(scopes: Collection[Scope]) -> list[str]:
    return [scope.value for scope in Scope if scope in scopes]


def _view(key: ApiKey, uses: Mapping[str, int], now: int) -> dict[str, Any]:
    """Return a key as it is shown, without its digest."""
    used_at = uses.get(key.id)
    return {
        "id": key.id,
        "name": key.name,
        "scopes": _scope_names(key.scopes),
        "namespace": key.namespace,
        "rate": key.rate,
        "created_at": rfc3339(key.created_at),
        "expires_at": None if key.expires_at is None else rfc3339(key.expires_at),
        "ended": key.has_ended(now),
        "last_used_at": None if used_at is None else rfc3339(used_at),
    }


def _row(view: Mapping[str, Any]) -> tuple[str, ...]:
    expires = "ended " * view["ended"] + _day(view["expires_at"])
    created, used = _day(view["created_at"]), (view["last_used_at"] or "-")[:16].replace("T", " ")
    scopes = "all" if len(view["scopes"]) == len(Scope) else ",".join(view["scopes"])
    return (view["id"], view["name"] or "-", scopes, view["namespace"] or "-", created, expires, used)


def _day(time: str | None) -> str:
    return "-" if time is None else time[:10]


def _time(at: int | None) -> str:
    return "-" if at is None else rfc3339(at)


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value in (None, "") else str(value)
