"""The options of a daemon that limit admission, in the form that clients which write to the store directly read."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from later.core.errors import LaterError
from later.core.policy import DEFAULT_POLICY, POLICY_FIELDS, Policy, PolicyValue, plain_number
from later.core.policy_scopes import Settings
from later.core.validation import to_milliseconds

ADMISSION_FIELDS = ("default_delay", "max_delay", "delay_mode", "delays", "ttl", "retry")
"""The fields of a policy that `admit` reads and a daemon has options for."""


class AdmissionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The options that decide on a create: the largest body in bytes, how long a job is remembered, and the policy.

    Of the policy, only `ADMISSION_FIELDS` count. It applies to topics for which the store holds no other.
    """

    max_body: int
    remember_ms: int
    policy: Policy = DEFAULT_POLICY


def encode_limits(limits: AdmissionLimits) -> bytes:
    """Return the limits as JSON, with the names and units of the HTTP interface."""
    return json.dumps(_limit_fields(limits), separators=(",", ":")).encode()


def decode_limits(stored: bytes) -> AdmissionLimits:
    """Return the limits that `encode_limits` wrote. A field of a policy that this version does not know is ignored.

    Raises:
        LaterError: they cannot be read.
    """
    try:
        fields: dict[str, Any] = json.loads(stored)
        max_body, remember_ms = int(fields["max_body"]), to_milliseconds(fields["remember"])
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise LaterError(f"the store's admission limits cannot be read: {error}") from None
    policy = Settings({name: fields[name] for name in ADMISSION_FIELDS if name in fields}).apply_to(DEFAULT_POLICY)
    return AdmissionLimits(max_body=max_body, remember_ms=remember_ms, policy=policy)


def changed_limits(before: AdmissionLimits, after: AdmissionLimits) -> list[str]:
    """Return the names of the limits that differ."""
    fields = _limit_fields(before)
    return [name for name, value in _limit_fields(after).items() if fields[name] != value]


def _limit_fields(limits: AdmissionLimits) -> dict[str, PolicyValue]:
    policy = {name: POLICY_FIELDS[name] for name in ADMISSION_FIELDS}
    return {
        "max_body": limits.max_body,
        "remember": plain_number(limits.remember_ms / 1000),
        **{name: field.format(getattr(limits.policy, field.attribute)) for name, field in policy.items()},
    }
