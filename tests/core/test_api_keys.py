"""API keys: their form, and what is kept of them."""

from __future__ import annotations

import re
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core.api_keys import (
    ALL_SCOPES,
    BASE_62,
    ApiKey,
    Scope,
    check_digits,
    check_key_text,
    format_scopes,
    has_key_form,
    has_valid_check,
    id_in_key,
    key_digest,
    make_key_text,
    root_key,
)
from later.core.call_rate import CallRate
from later.core.key_set import KeySet

DAY_MS = 86_400_000
KEY = "later_0aB9zZ10_" + "x" * 32
KEY += check_digits(KEY)


def a_key(text: str = KEY, *, created_at: int = 0, expires_at: int | None = None) -> ApiKey:
    return ApiKey(
        id=id_in_key(text), digest=key_digest(text), name="", namespace=None, scopes=ALL_SCOPES,
        created_at=created_at, expires_at=expires_at, rate=None,
    )  # fmt: skip


def test_new_keys_have_the_form_that_scanners_know_and_are_never_the_same() -> None:
    keys = [make_key_text() for _ in range(200)]
    assert all(re.fullmatch("later_[0-9A-Za-z]{8}_[0-9A-Za-z]{38}", key) and len(key) == 53 for key in keys)
    assert all(check_key_text(key) == key and has_valid_check(key) for key in keys)
    assert len({key[6:14] for key in keys}) == len({key[15:47] for key in keys}) == 200


@given(st.text(BASE_62, min_size=41, max_size=41))
def test_the_check_is_the_crc_32_of_all_before_it_in_base_62(rest: str) -> None:
    start = f"later_{rest[:8]}_{rest[8:40]}"
    digits = check_digits(start)
    assert len(digits) == 6
    number = 0
    for digit in digits:
        number = number * 62 + BASE_62.index(digit)
    assert number == crc32(start.encode())


@given(st.integers(0, 52), st.characters())
def test_a_key_with_one_other_character_is_mistyped(at: int, character: str) -> None:
    text = KEY[:at] + character + KEY[at + 1 :]
    assert has_valid_check(text) == (text == KEY)
    assert (KeySet([a_key()]).find(text) is not None) == (text == KEY)


@given(st.text(max_size=60))
def test_no_other_text_is_a_key(text: str) -> None:
    assert not has_key_form(text)
    assert KeySet([a_key()]).find(text) is None
    with pytest.raises(ValueError, match="later_ and 47 more"):
        check_key_text(text)


def test_a_refused_text_is_not_shown() -> None:
    for text in (KEY[:-1] + ("a" if KEY[-1] != "a" else "b"), KEY[:-1]):
        with pytest.raises(ValueError, match="later_ and 47 more") as caught:
            check_key_text(text)
        assert text[15:] not in str(caught.value)


def test_white_space_around_a_key_does_not_matter() -> None:
    assert check_key_text(f" {KEY}\n") == KEY


def test_what_is_kept_of_a_key_is_not_the_key() -> None:
    kept = repr(root_key(KEY))
    assert KEY[15:] not in kept
    assert "0aB9zZ10" in kept


def test_a_key_with_the_id_of_another_one_is_not_found() -> None:
    assert KeySet([a_key()]).find(KEY[:15] + make_key_text()[15:]) is None


def test_scopes_are_named_in_their_order() -> None:
    assert format_scopes([Scope.EDIT, Scope.CREATE, Scope.READ]) == "create, read and edit"
    assert format_scopes([Scope.READ, Scope.CREATE]) == "create and read"
    assert format_scopes([Scope.METRICS]) == "metrics"


def test_a_key_that_is_rotated_ends_after_the_overlap_and_its_successor_lasts_as_long_as_it_did() -> None:
    old = a_key(created_at=1000, expires_at=1000 + 90 * DAY_MS)
    text = make_key_text()
    new, ending = old.rotate(text, now=50 * DAY_MS, overlap_ms=DAY_MS)
    assert (new.id, new.digest, new.expires_at) == (id_in_key(text), key_digest(text), 140 * DAY_MS)
    assert (new.scopes, new.namespace, new.rate, new.name) == (old.scopes, old.namespace, old.rate, old.name)
    assert (ending.id, ending.expires_at) == (old.id, 51 * DAY_MS)


def test_a_key_that_is_rotated_again_has_a_successor_that_lasts_as_long_as_the_first_one() -> None:
    for expires_at, successor_end in ((1000 + 90 * DAY_MS, 140 * DAY_MS), (None, None)):
        _, ending = a_key(created_at=1000, expires_at=expires_at).rotate(make_key_text(), 40 * DAY_MS, 30 * DAY_MS)
        second, ending = ending.rotate(make_key_text(), now=50 * DAY_MS, overlap_ms=DAY_MS)
        assert (second.expires_at, ending.expires_at) == (successor_end, 51 * DAY_MS)


def test_a_rotation_never_lengthens_the_old_key() -> None:
    assert a_key(expires_at=500).rotate(make_key_text(), now=400, overlap_ms=1000)[1].expires_at == 500
    assert a_key().rotate(make_key_text(), now=400, overlap_ms=0)[1].has_ended(400)


def test_a_second_s_worth_may_come_at_once_and_no_more() -> None:
    rate = CallRate(5, at_s=0.0)
    assert [rate.take(1, 0.0) for _ in range(6)] == [0, 0, 0, 0, 0, 1]
    assert rate.take(5, 1.0) == 0
    assert rate.take(6, 9.0) == 1
    assert rate.take(5, 9.0) == 0
    assert rate.take(50, 9.0) == 10


def test_a_rate_below_one_lets_single_tasks_through() -> None:
    rate = CallRate(0.1, at_s=0.0)
    assert (rate.take(1, 0.0), rate.take(1, 1.0), rate.take(1, 10.0)) == (0, 9, 0)
