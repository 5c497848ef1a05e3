"""Admission limits survive their way through the store, and name what decides on a create."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core.admission_limits import (
    ADMISSION_FIELDS,
    AdmissionLimits,
    changed_limits,
    decode_limits,
    encode_limits,
)
from later.core.admit import admit
from later.core.errors import LaterError
from later.core.policy import POLICY_FIELDS, DelayMode, Policy
from later.core.policy_scopes import Policies
from tests.builders import NOW, a_draft
from tests.cases import each_case

POLICIES = st.builds(
    Policy,
    default_delay_ms=st.integers(0, 10**9),
    max_delay_ms=st.integers(0, 10**9),
    delay_mode=st.sampled_from(DelayMode),
    delays=st.booleans(),
    ttl_ms=st.integers(0, 10**9),
    retry=st.integers(0, 1000),
)
LIMITS = AdmissionLimits(max_body=1024, remember_ms=500, policy=Policy(retry=7, max_delay_ms=1500))


class RecordingPolicy:
    """A policy that records which of its fields are read."""

    def __init__(self) -> None:
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> object:
        self.read.add(name)
        return getattr(Policy(max_delay_ms=60_000, ttl_ms=1), name)


@given(max_body=st.integers(1, 2**24), remember_ms=st.integers(0, 10**12), policy=POLICIES)
def test_limits_are_read_as_they_were_written(max_body: int, remember_ms: int, policy: Policy) -> None:
    limits = AdmissionLimits(max_body=max_body, remember_ms=remember_ms, policy=policy)
    assert decode_limits(encode_limits(limits)) == limits


def test_they_are_written_with_the_names_and_units_of_the_http_interface() -> None:
    assert encode_limits(LIMITS) == (
        b'{"max_body":1024,"remember":0.5,"default_delay":0,"max_delay":1.5,"delay_mode":"honor","delays":true,'
        b'"ttl":0,"retry":7}'
    )


def test_every_policy_field_that_admission_reads_is_among_them() -> None:
    policy = RecordingPolicy()
    for changes in ({}, {"delay": 5}, {"retry": 1, "ttl": 9}):
        admit(a_draft(**changes), Policies(policy), NOW, "id")  # type: ignore[arg-type]  # a policy that records
    not_of_writers = {"deliver", "durability"}  # one that opens the store itself has the level `primary`
    assert policy.read - not_of_writers == {POLICY_FIELDS[name].attribute for name in ADMISSION_FIELDS}


def test_the_names_of_the_limits_that_differ_are_told() -> None:
    other = AdmissionLimits(max_body=1024, remember_ms=501, policy=Policy(max_delay_ms=1500, concurrency=5))
    assert changed_limits(LIMITS, LIMITS) == []
    assert changed_limits(LIMITS, other) == ["remember", "retry"]


def test_what_a_newer_version_adds_is_ignored_and_what_it_drops_has_its_default() -> None:
    limits = decode_limits(b'{"max_body": 9, "remember": 1, "retry": 5, "delay_mode": "other", "color": [1]}')
    assert limits == AdmissionLimits(max_body=9, remember_ms=1000, policy=Policy(retry=5))


@each_case(
    "stored",
    [
        b"",
        b"[]",
        b"7",
        b"{}",
        b'{"max_body": 9}',
        b'{"max_body": "x", "remember": 1}',
        b'{"max_body": 9, "remember": 1e999}',
    ],
)
def test_what_is_no_limits_is_an_error(stored: bytes) -> None:
    with pytest.raises(LaterError, match="admission limits cannot be read"):
        decode_limits(stored)
