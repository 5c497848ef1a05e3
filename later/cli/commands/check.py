"""The command `check`: whether a callback would be called, and where, and what its receiver answers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from later.cli.console import printable
from later.cli.options import config_options, examples, json_option
from later.cli.receiver_call import ReceiverCheck, SecretOptions, check_receiver
from later.cli.store_access import load_config, run_with_store
from later.cli.tables import print_text_table
from later.config import Config, load
from later.core.address_guard import AddressGuard, Refusal
from later.core.callback_url import check_callback
from later.core.errors import LaterError
from later.core.host_address import parse_host_address
from later.core.origin import Origin
from later.core.receiver_answer import SignatureState
from later.daemon.guard import build_guard
from later.daemon.signing_key import read_masters
from later.delivery.resolver import resolve_host
from later.store.open import Store

NOT_HTTPS_NOTE = "it is not https, and --https-only is on"
PROXY_NOTE = "the proxy looks the name up, and judges it"


class Judgement(NamedTuple):
    """The guard's judgement on one address of a callback, or on any (None)."""

    address: str | None
    refusal: Refusal | None

    @property
    def note(self) -> str:
        """The reason of the judgement, and the option that would change it."""
        if self.refusal is None:
            return PROXY_NOTE if self.address is None else ""
        if self.address is None:
            return NOT_HTTPS_NOTE
        option = self.refusal.allow_option
        return f"{self.refusal.why}: {option} allows it" if option else f"{self.refusal.why}: --guard-deny refuses it"


@click.command(
    epilog=examples(
        "later check https://billing.internal/hook",
        "later check http://10.2.3.4/ --guard-allow 10.2.0.0/16",
        "later check http://127.0.0.1:8000/later --verify --data ./later-data",
        "later check https://shop.example/later --verify --topic shop/order",
        about="The exit status is 0 if it would be called, with --verify also if the receiver is well, and 1 if not.",
    )
)
@click.argument("url")
@click.option(
    "--verify", is_flag=True, help="Ask the receiver which topics it handles, by a call that runs no handler."
)
@click.option(
    "--topic", metavar="TEXT", help="With --verify: call it as for a task of this topic, which it must handle."
)
@click.option(
    "--namespace",
    metavar="TEXT",
    help="With --verify: sign the call as for this namespace.  [default: that of --topic, or default]",
)
@json_option
@config_options("check")
def check(
    *, url: str, verify: bool, topic: str | None, namespace: str | None, as_json: bool, **flags: str | None
) -> int:
    """Say whether the address guard lets a URL be called.

    Looks the host of the URL up on this machine, judges its addresses by the options of a daemon (of the command line,
    the environment or later.toml), and calls nothing. With --guard auto it judges as a daemon whose guard is on.

    With --verify it also calls the URL, if the guard lets it: a receiver of the Python library answers which topics it
    handles, and runs nothing. The call is signed as a delivery, by the signing key and the policies of the store that
    --redis or --data names; it is sent once more without a signature, to see that the receiver verifies it. With --data
    of a `later up` without keys, --guard auto is off, as in that daemon.
    """
    options = SecretOptions(topic, namespace)
    if any(options) and not verify:
        raise click.UsageError("--topic and --namespace go with --verify.")
    if all(options):
        raise click.UsageError("Give either --topic or --namespace.")
    config = load_config("check", flags) if verify else load("check", flags, os.environ)
    origin = Origin.of(check_callback(url))
    guard = build_guard(config)
    guard.is_on = config.guard != "off"
    if not verify:
        judgements = _judge(origin, guard, config)
        return _print(url, guard, judgements, None, as_json=as_json)
    masters = read_masters(config)

    async def verify_receiver(store: Store) -> int:
        store.signing.use_masters(masters)
        if config.guard == "auto" and config.data_given and not config.guard_deny:
            guard.is_on = (await store.key_book.read()).has_had_keys
        judgements = await asyncio.to_thread(_judge, origin, guard, config)
        checked = await check_receiver(store, config, guard, url, options) if _is_called(judgements) else None
        return _print(url, guard, judgements, checked, as_json=as_json)

    return run_with_store(config, verify_receiver)


def _is_called(judgements: Sequence[Judgement]) -> bool:
    return any(judgement.refusal is None for judgement in judgements)


def _judge(origin: Origin, guard: AddressGuard, config: Config) -> list[Judgement]:
    """Return a judgement on each address that the host has. Raises LaterError if it has none."""
    refusal = guard.judge_url(origin)
    literal = parse_host_address(origin.host)
    if literal is not None and (refusal is None or refusal.address):
        return [Judgement(str(literal), refusal)]
    if refusal is not None or config.proxy is not None:
        return [Judgement(None, refusal)]
    try:
        found = resolve_host(origin.host, origin.port)
    except OSError as error:
        reason = error.strerror or "no address"
        raise LaterError(f"{printable(origin.host)}: the name lookup failed: {reason}") from None
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    return [Judgement(address, guard.judge_address(origin.host, address)) for address in addresses]


def _print(
    url: str, guard: AddressGuard, judgements: Sequence[Judgement], checked: ReceiverCheck | None, *, as_json: bool
) -> int:
    """Print the judgements, and what the receiver answered. Return the exit status."""
    is_called = _is_called(judgements)
    if as_json:
        shown = {"url": url, "guard": guard.is_on, "called": is_called, "addresses": [*map(_address_json, judgements)]}
        print(json.dumps(shown if checked is None else {**shown, "receiver": checked.shown}))
    else:
        _print_judgements(url, guard, judgements)
        if checked is not None:
            print()
            for line in _receiver_lines(checked):
                print(printable(line))
    return 0 if is_called and (checked is None or checked.is_well) else 1


def _address_json(judgement: Judgement) -> dict[str, Any]:
    return {
        "address": judgement.address,
        "called": judgement.refusal is None,
        "why": None if judgement.refusal is None else judgement.refusal.why,
        "allow": (judgement.refusal and judgement.refusal.allow_option) or None,
    }


def _print_judgements(url: str, guard: AddressGuard, judgements: Sequence[Judgement]) -> None:
    verdict = "would be called" if _is_called(judgements) else "would not be called"
    print(f"{printable(url)} {verdict}{'' if guard.is_on else ' (the guard is off)'}")
    rows = [
        [judgement.address or "any", "yes" if judgement.refusal is None else "no", judgement.note]
        for judgement in judgements
    ]
    print_text_table(("address", "called", "why"), rows)


def _receiver_lines(checked: ReceiverCheck) -> list[str]:
    """Return what the receiver answered, and what it does with signatures, in sentences."""
    topics, detail, _ = checked.answer
    lines = []
    if topics:
        lines.append(f"the receiver handles {', '.join(topics)}")
    if detail:
        lines.append(detail)
    match checked.signature:
        case SignatureState.VERIFIED:
            lines.append(f"it verifies signatures: the call had that of the {checked.scope}")
        case SignatureState.IGNORED:
            lines.append(
                "it takes calls without a signature, too: anybody who reaches it can run its handlers; see Signed"
            )
        case SignatureState.REFUSED:
            lines.append(f"the call had the signature of the {checked.scope}; --topic or --namespace chooses another")
        case SignatureState.NONE if topics is not None:
            lines.append("the call was not signed: there is no signing key, or the policy says `sign` off")
    return lines
