"""The verification of calls."""

from __future__ import annotations

import logging

import pytest

from later.core.signing import Secret, format_signatures, prepare_context
from later.receiver.signed import NotVerified, Signed
from tests.cases import each_case

# The example of https://github.com/standard-webhooks/standard-webhooks, signed by its reference libraries
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HEADERS = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}
BODY = b'{"test": 2432232314}'
NOW = 1614265330.0
OTHER = Secret(b"o" * 32)


def test_the_example_of_standard_webhooks_verifies() -> None:
    Signed([KEY]).verify(HEADERS, BODY, NOW)


def test_any_of_the_keys_and_any_of_the_signatures_is_enough() -> None:
    signature = format_signatures([prepare_context(OTHER)], HEADERS["webhook-id"], int(NOW), BODY)
    both = {**HEADERS, "webhook-signature": f"{HEADERS['webhook-signature']} v2,x {signature}"}
    for keys in ([OTHER.text], [KEY], [KEY, OTHER.text], [OTHER.text.removeprefix("whsec_")]):
        Signed(keys).verify(both, BODY, NOW)


@each_case(
    "changed, body, now",
    [
        ({"webhook-id": "other"}, BODY, NOW),
        ({"webhook-timestamp": "1614265331"}, BODY, NOW),
        ({}, b'{"test":2432232314}', NOW),
        ({}, BODY, NOW + 301),
        ({}, BODY, NOW - 301),
        ({"webhook-signature": ""}, BODY, NOW),
        ({"webhook-signature": "v1a," + HEADERS["webhook-signature"][3:]}, BODY, NOW),
        ({"webhook-signature": HEADERS["webhook-signature"][3:]}, BODY, NOW),
        ({"webhook-signature": "v1,é"}, BODY, NOW),
        ({"webhook-signature": "v1,\udcff"}, BODY, NOW),
        ({"webhook-id": "\udcff"}, BODY, NOW),
        ({"webhook-timestamp": "١٦١٤٢٦٥٣٣٠"}, BODY, NOW),
        ({"webhook-timestamp": "1" * 5000}, BODY, NOW),
        ({"webhook-timestamp": "-1614265330"}, BODY, NOW),
    ],
)
def test_a_changed_or_stale_call_is_refused(changed: dict[str, str], body: bytes, now: float) -> None:
    with pytest.raises(NotVerified):
        Signed([KEY]).verify({**HEADERS, **changed}, body, now)


def test_another_key_verifies_nothing() -> None:
    with pytest.raises(NotVerified):
        Signed([OTHER.text]).verify(HEADERS, BODY, NOW)


@each_case("keys", [[], KEY, ["whsec_"], ["whsec_?"], [KEY, "secret"]])
def test_what_is_no_secret_is_refused_and_not_shown(keys: list[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(ValueError, match="keys: ") as refused:
        Signed(keys)
    assert "MfKQ9r8" not in str(refused.value) + caplog.text
