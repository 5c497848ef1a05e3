"""The command `check`: whether a callback would be called, and where."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from later.cli.console import printable
from later.cli.options import config_options, examples, json_option
from later.cli.tables import print_text_table
from later.config import Config, load
from later.core.address_guard import AddressGuard, Refusal
from later.core.callback_url import check_callback
from later.core.errors import LaterError
from later.core.host_address import parse_host_address
from later.core.origin import Origin
from later.daemon.guard import build_guard
from later.delivery.resolver import resolve_host

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
        about="The exit status is 0 if it would be called, and 1 if not.",
    )
)
@click.argument("url")
@json_option
@config_options("check")
def check(*, url: str, as_json: bool, **flags: str | None) -> int:
    """Say whether the address guard lets a URL be called.

    Looks the host of the URL up on this machine, judges its addresses by the options of a daemon (of the command line,
    the environment or later.toml), and calls nothing. With --guard auto it judges as a daemon whose guard is on.
    """
    config = load("check", flags, os.environ)
    guard = build_guard(config)
    guard.is_on = config.guard != "off"
    origin = Origin.of(check_callback(url))
    judgements = _judge(origin, guard, config)
    is_called = any(judgement.refusal is None for judgement in judgements)
    (_print_json if as_json else _print_text)(url, guard, judgements, is_called)
    return 0 if is_called else 1


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


def _print_json(url: str, guard: AddressGuard, judgements: Sequence[Judgement], is_called: bool) -> None:
    addresses: list[dict[str, Any]] = [
        {
            "address": judgement.address,
            "called": judgement.refusal is None,
            "why": None if judgement.refusal is None else judgement.refusal.why,
            "allow": (judgement.refusal and judgement.refusal.allow_option) or None,
        }
        for judgement in judgements
    ]
    print(json.dumps({"url": url, "guard": guard.is_on, "called": is_called, "addresses": addresses}))


def _print_text(url: str, guard: AddressGuard, judgements: Sequence[Judgement], is_called: bool) -> None:
    verdict = "would be called" if is_called else "would not be called"
    print(f"{printable(url)} {verdict}{'' if guard.is_on else ' (the guard is off)'}")
    rows = [
        [judgement.address or "any", "yes" if judgement.refusal is None else "no", judgement.note]
        for judgement in judgements
    ]
    print_text_table(("address", "called", "why"), rows)
