"""The address guard: at which addresses receivers may be called.

A caller who may create tasks must not reach what only this machine or its network reaches. The guard judges the address
that a socket is about to be connected to. So it does not matter how a URL is written, or what its host's name
means: there is no second lookup that could give another address.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache, partial
from ipaddress import ip_network
from typing import NamedTuple

from later.core.address_table import AddressKind, IPAddress, IPNetwork, classify_address, unwrap
from later.core.callback_url import check_host_and_port
from later.core.errors import Refused
from later.core.host_address import parse_host_address
from later.core.origin import Origin

DENIED = "denied"
OWN = "own"
NOT_HTTPS = "http"
PROXY = "proxy"
REFUSAL_CAUSES = (*AddressKind, OWN, DENIED, NOT_HTTPS, PROXY)
"""Every reason for which a callback is refused: the kind of its address, `own` for one of this machine, `denied` by
--guard-deny, `http` with --https-only, and `proxy` if the proxy refused it."""

ALLOW_OPTION = "--guard-allow"
MAX_JUDGED = 4096
"""Judgements that are remembered. The rules do not change."""


class Refusal(NamedTuple):
    """A refusal of a callback: one of `REFUSAL_CAUSES`, and the address, if it is about one."""

    why: str
    address: str = ""

    @property
    def message(self) -> str:
        """The text for those who see the task.

        It does not contain the address: otherwise every caller could look up internal names through later.
        """
        if self.why == NOT_HTTPS:
            return "this URL may not be called: http"
        if self.why == PROXY:
            return "the proxy refuses to call this host"
        return f"this host's address may not be called: {self.why}"

    @property
    def allow_option(self) -> str:
        """The option that would allow the address, as it stands on a command line; empty if none would."""
        if self.why in (DENIED, NOT_HTTPS, PROXY):
            return ""
        return f"{ALLOW_OPTION} {self.address}/{128 if ':' in self.address else 32}"

    def as_refused(self) -> Refused:
        """Return the error of a request with such a callback."""
        if self.why == NOT_HTTPS:
            return Refused("callback: this daemon calls https URLs only (--https-only)", "callback")
        who = f"callback: this daemon does not call {self.address} ({self.why})"
        return Refused(f"{who}; {_advice(self.why)}", "callback")


def advice(message: str) -> str:
    """Return what can be done about a refusal, of which only the message is left; empty if there is nothing to say."""
    return _advice(message.rpartition(": ")[2])


def _advice(why: str) -> str:
    if why in (*AddressKind, OWN):
        return f"its operator can allow it with {ALLOW_OPTION}"
    option = {DENIED: "--guard-deny", NOT_HTTPS: "--https-only"}.get(why)
    return "" if option is None else f"its operator refuses it with {option}"


class AddressRules(NamedTuple):
    """Which addresses are allowed: of these networks, or whatever these names, or names below these zones, mean."""

    networks: tuple[IPNetwork, ...] = ()
    names: frozenset[str] = frozenset()
    zones: tuple[str, ...] = ()
    """Each begins with a dot: the zone itself is not in it."""

    @classmethod
    def of(cls, rules: Collection[str]) -> AddressRules:
        """Return the rules of texts that `parse_rule` returned."""
        networks = {rule for rule in rules if "/" in rule}
        zones = {rule for rule in rules if rule.startswith("*.")}
        return cls(
            tuple(ip_network(rule) for rule in sorted(networks)),
            frozenset(rules) - networks - zones,
            tuple(rule[1:] for rule in sorted(zones)),
        )

    def have_address(self, address: IPAddress) -> bool:
        return any(address in network for network in self.networks)

    def have_name(self, host: str) -> bool:
        name = host.removesuffix(".")
        return name in self.names or (bool(self.zones) and name.endswith(self.zones))


def parse_rule(text: str) -> str:
    """Return a network, an address, a name or a zone (`*.internal`) in the form that `AddressRules.of` takes.

    Raises:
        ValueError: it is something else; the text says what is expected.
    """
    host = text.strip().lower()
    zone = "*." if host.startswith("*.") else ""
    name = host.removeprefix(zone)
    try:
        address = None if "/" in name else parse_host_address(name.strip("[]"))
        if "/" in name or address is not None:
            return _read_network(host if address is None or zone else str(address))
        check_host_and_port(name)
        return zone + Origin.of(f"http://{name}/").host.removesuffix(".")
    except ValueError as error:
        raise ValueError(
            f"networks, addresses, names or zones, like 10.1.0.0/16,shop.internal,*.pods: {error}"
        ) from None


def parse_network(text: str) -> str:
    """Return a network in the form that `AddressRules.of` takes; an address is a network of one.

    Raises:
        ValueError: it is neither; the text says what is expected.
    """
    try:
        return _read_network(text.strip())
    except ValueError as error:
        raise ValueError(f"networks and addresses, like 10.1.0.0/16,10.2.3.4: {error}") from None


def _read_network(text: str) -> str:
    """Return a network as `10.1.0.0/16`; an IPv4-mapped one is that of IPv4. Raises ValueError."""
    network = ip_network(text)
    first = unwrap(network.network_address)
    return f"{first}/{network.prefixlen - 96}" if first.version < network.version else str(network)


class AddressGuard:
    """The guard of a daemon. Until it is known whether it `is_on`, it is.

    `allow` and `deny` are texts that `parse_rule` and `parse_network` returned. `is_own` says whether an address is one
    of this machine's. With `https_only`, http is refused besides, whether the guard is on or off. Behind a proxy
    (`has_proxy`), a connection is the proxy's; then only what needs no lookup is judged, before the call.
    """

    def __init__(
        self,
        *,
        is_own: Callable[[IPAddress], bool],
        allow: Collection[str] = (),
        deny: Collection[str] = (),
        https_only: bool = False,
        is_on: bool = True,
        has_proxy: bool = False,
    ) -> None:
        self.is_on = is_on
        self._is_own = is_own
        rules = partial(_judge_by_rules, AddressRules.of(allow), AddressRules.of(deny))
        self._judge_by_rules = lru_cache(maxsize=MAX_JUDGED)(rules)
        self.https_only = https_only
        self._has_proxy = has_proxy

    @property
    def judges_urls(self) -> bool:
        """True if `judge_url` may refuse one."""
        return self.is_on or self.https_only

    @property
    def judges_calls(self) -> bool:
        """True if a call may be refused that opens no connection, or one to the proxy: `judge_url` says it."""
        return self.https_only or self._has_proxy

    def judge_address(self, host: str, address: str) -> Refusal | None:
        """Return why no socket may be connected to `address` for a call to `host` (as `Origin` has it), or None.

        Raises:
            OSError: this machine lacks what it takes to tell.
        """
        if not self.is_on or self._has_proxy:
            return None
        return self._judge(host, address)

    def judge_url(self, origin: Origin) -> Refusal | None:
        """Return why a callback may not be called, as far as that can be said without a lookup; otherwise None.

        A name may be called, whatever it means now: a create must not wait for a lookup, and its answer may change.

        Raises:
            OSError: this machine lacks what it takes to tell.
        """
        if self.https_only and origin.scheme != "https":
            return Refusal(NOT_HTTPS)
        is_address = self.is_on and parse_host_address(origin.host) is not None
        return self._judge(origin.host, origin.host) if is_address else None

    def _judge(self, host: str, address: str) -> Refusal | None:
        refusal, unknown = self._judge_by_rules(host, address)
        if unknown is not None and self._is_own(unknown):
            return Refusal(OWN, str(unknown))
        return refusal


def _judge_by_rules(
    allowed: AddressRules, denied: AddressRules, host: str, text: str
) -> tuple[Refusal | None, IPAddress | None]:
    """Return why an address is refused, or None; and the address if neither an option nor the table knows it."""
    address = parse_host_address(text.partition("%")[0])  # without the zone of a link-local address
    assert address is not None
    address = unwrap(address)
    if denied.have_address(address):
        return Refusal(DENIED, str(address)), None
    if allowed.have_address(address) or allowed.have_name(host):
        return None, None
    kind = classify_address(address)
    return (None, address) if kind is None else (Refusal(kind.value, str(address)), None)
