"""Signing secrets: how they are derived, which of them sign, and how they are rotated."""

from __future__ import annotations

import base64
import hmac
import json
from datetime import datetime, tzinfo
from typing import Self
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from later.core.errors import MissingMaster, NoSigningKey, TooManySecrets
from later.core.origin import Origin
from later.core.policy import Sign
from later.core.signing import (
    MAX_ROTATED,
    MAX_ROTATED_TOPICS,
    Generation,
    KeyRing,
    Master,
    Secret,
    SecretScope,
    derive_secret,
    format_signatures,
    make_master,
    parse_masters,
    prepare_context,
    secret_scope,
)
from later.delivery.request import encode_body
from tests.builders import NOW, a_task

DAY_MS = 86_400_000
MASTER, OTHER = Master(bytes(range(32))), Master(bytes(32))
SHOP = SecretScope(Sign.NAMESPACE, "shop")


def rotate(ring: KeyRing, scope: SecretScope | None = SHOP, now: int = NOW, overlap_ms: int = DAY_MS) -> KeyRing:
    return ring.replace({scope: ring.rotate(scope, now, overlap_ms)})


def live_generations(ring: KeyRing, now: int, scope: SecretScope = SHOP) -> list[int]:
    return [generation.g for generation in ring.generations(scope) if generation.is_live(now)]


def verify(secret: str, headers: dict[str, str], body: bytes, now_s: int = NOW // 1000) -> object:
    """Verify a delivery as the package of the standard does, at a time (s)."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(now_s, tz)

    with patch("standardwebhooks.webhooks.datetime", Clock):
        return Webhook(secret).verify(body, headers)


class TestSecrets:
    @pytest.mark.parametrize(
        ("level", "name", "generation", "secret"),
        [
            (Sign.NAMESPACE, "default", 1, "whsec_7nT3K0Au1PgecvbDlsPGTkBzr3/PmVX4ZI+MLQQfBwg="),
            (Sign.TOPIC, "order", 1, "whsec_jZetL+TO0GEXqY3zHWyBwRPxALhfIz1RbNdEaZAdWKQ="),
            (Sign.ORIGIN, "default\x1fhttps://shop.example", 1, "whsec_GXQnhceWwbB0UjGlv8bISBIM1ue03gcC5RaOPbauyPU="),
            (Sign.NAMESPACE, "default", 2, "whsec_8R/7fzWc+VIVjePVadqWl20u/eijVo6ZkNw7PYRVn0Y="),
        ],
    )
    def test_a_secret_is_derived_from_master_level_name_and_generation(
        self, level: Sign, name: str, generation: int, secret: str
    ) -> None:
        assert derive_secret(MASTER, SecretScope(level, name), generation).text == secret

    def test_each_sign_has_a_secret_of_its_own_scope(self) -> None:
        def scope(sign: Sign, callback: str = "https://Shop.example:443/x", topic: str = "shop/order") -> SecretScope:
            return secret_scope(sign, topic, Origin.of(callback) if sign is Sign.ORIGIN else None)

        assert scope(Sign.NAMESPACE) == SHOP
        assert scope(Sign.NAMESPACE, topic="order") == (Sign.NAMESPACE, "default")
        assert scope(Sign.TOPIC) == (Sign.TOPIC, "shop/order")
        assert scope(Sign.ORIGIN) == (Sign.ORIGIN, "shop\x1fhttps://shop.example")
        assert scope(Sign.ORIGIN, "http://[::1]:8080/") == (Sign.ORIGIN, "shop\x1fhttp://[::1]:8080")

    @given(st.sampled_from([sign for sign in Sign if sign is not Sign.OFF]), st.text(max_size=40))
    def test_a_scope_is_read_as_it_was_written(self, level: Sign, name: str) -> None:
        scope = SecretScope(level, name)
        assert SecretScope.parse(scope.text) == scope

    def test_neither_masters_nor_secrets_show_their_key(self) -> None:
        shown = repr((MASTER, derive_secret(MASTER, SHOP, 1), [derive_secret(MASTER, SHOP, 1)]))
        assert shown == "(Master(), Secret(…), [Secret(…)])"


class TestKeyFile:
    def test_each_line_is_a_master_the_rest_is_skipped(self) -> None:
        assert parse_masters(f"# the newest\n{MASTER.text}\r\n\n  {OTHER.text}\n") == (MASTER, OTHER)
        assert parse_masters(made := make_master().text)[0].text == made

    @pytest.mark.parametrize(
        "line",
        [
            "AAEC",
            "whmk_",
            "whmk_AAECAwQ=",
            MASTER.text[:-1],
            MASTER.text.replace("whmk_", "whsec_"),
            "whmk_" + "é" * 44,
        ],
    )
    def test_a_wrong_line_is_refused_by_its_number_and_never_shown(self, line: str) -> None:
        with pytest.raises(ValueError, match=r"unlike line 2$") as caught:
            parse_masters(f"{OTHER.text}\n{line}\n")
        assert line == "whmk_" or line not in str(caught.value)

    def test_an_empty_file_is_refused(self) -> None:
        with pytest.raises(ValueError, match="got none"):
            parse_masters("# nothing yet\n")


class TestGenerations:
    def test_what_was_never_rotated_is_signed_by_the_last_master(self) -> None:
        ring = KeyRing([OTHER, MASTER])
        assert ring.secrets(SHOP, NOW) == [derive_secret(MASTER, SHOP, 1)]

    def test_without_a_master_nothing_is_signed(self) -> None:
        assert KeyRing().secrets(SHOP, NOW) == []

    def test_a_rotation_is_signed_by_the_first_master_and_the_old_secret_until_the_overlap_ends(self) -> None:
        ring = rotate(KeyRing([OTHER, MASTER]))
        new, old = derive_secret(OTHER, SHOP, 2), derive_secret(MASTER, SHOP, 1)
        assert ring.secrets(SHOP, NOW + DAY_MS - 1) == [new, old]
        assert ring.secrets(SHOP, NOW + DAY_MS) == [new]
        assert ring.secrets(SecretScope(Sign.TOPIC, "shop"), NOW) == [
            derive_secret(MASTER, SecretScope(Sign.TOPIC, "shop"), 1)
        ]

    def test_an_overlap_of_zero_ends_all_older_secrets_at_once(self) -> None:
        ring = rotate(rotate(rotate(KeyRing([MASTER]))), overlap_ms=0)
        assert live_generations(ring, NOW) == [4]

    def test_an_overlap_never_prolongs_an_older_secret(self) -> None:
        ring = rotate(rotate(KeyRing([MASTER])), now=NOW + DAY_MS // 2)
        assert live_generations(ring, NOW + DAY_MS) == [3, 2]

    def test_three_secrets_sign_at_most_until_the_first_of_them_has_ended(self) -> None:
        ring = rotate(rotate(KeyRing([MASTER])), now=NOW + 1000)
        with pytest.raises(TooManySecrets, match=r"rotate again after 20.*Z, or with an overlap of 0"):
            ring.rotate(SHOP, NOW + 2000, DAY_MS)
        assert live_generations(rotate(ring, now=NOW + DAY_MS), NOW + DAY_MS) == [4, 3, 2]

    def test_a_rotation_of_all_concerns_names_that_were_never_used_too(self) -> None:
        ring = rotate(KeyRing([OTHER, MASTER]), None)
        assert ring.secrets(SHOP, NOW) == [derive_secret(OTHER, SHOP, 2), derive_secret(MASTER, SHOP, 1)]
        assert live_generations(rotate(ring, now=NOW + DAY_MS), NOW + DAY_MS) == [3, 2]

    def test_a_tenant_leaves_room_for_rotations_of_others(self) -> None:
        generations = rotate(KeyRing([MASTER])).generations(SHOP)
        topics = {SecretScope(Sign.TOPIC, f"shop/{number}"): generations for number in range(MAX_ROTATED_TOPICS)}
        ring = KeyRing([MASTER], topics)
        with pytest.raises(TooManySecrets, match=r"1000 topics of the namespace shop .* rotates all together"):
            rotate(ring, SecretScope(Sign.TOPIC, "shop/one more"))
        for scope in (SecretScope(Sign.TOPIC, "shop/0"), SHOP, SecretScope(Sign.TOPIC, "other/0"), None):
            assert rotate(ring, scope, overlap_ms=0).generations(scope)[0].g > 1

    def test_the_secrets_that_are_rotated_by_themselves_are_limited(self) -> None:
        generations = rotate(KeyRing([MASTER])).generations(SHOP)
        ring = KeyRing([MASTER], {SecretScope(Sign.NAMESPACE, f"{n}"): generations for n in range(MAX_ROTATED)})
        with pytest.raises(TooManySecrets, match="10000 secrets were rotated by themselves"):
            rotate(ring)
        assert live_generations(rotate(ring, None), NOW) == [2, 1]

    def test_without_a_master_nothing_is_rotated(self) -> None:
        with pytest.raises(NoSigningKey, match="--signing-key"):
            KeyRing().rotate(SHOP, NOW, 0)

    def test_nothing_is_signed_with_another_secret_in_place_of_a_missing_one(self) -> None:
        ring = KeyRing([OTHER], rotate(KeyRing([MASTER])).rotated)
        with pytest.raises(MissingMaster, match=f"^the signing key {MASTER.fingerprint} is missing"):
            ring.secrets(SHOP, NOW)
        assert ring.missing_masters(NOW) == {MASTER.fingerprint: ["namespace shop", "namespace shop"]}

    def test_a_missing_master_is_one_fault_however_many_scopes_need_it(self) -> None:
        ring = KeyRing([OTHER], rotated_all=rotate(KeyRing([MASTER]), None).rotated_all)
        errors = set()
        for host in ("a", "b"):
            with pytest.raises(MissingMaster) as caught:
                ring.secrets(SecretScope(Sign.ORIGIN, f"shop\x1fhttps://{host}.example"), NOW)
            errors.add(str(caught.value))
        assert len(errors) == 1

    def test_an_older_secret_whose_master_is_missing_is_left_out(self) -> None:
        ring = KeyRing([OTHER], rotate(KeyRing([OTHER, MASTER])).rotated)
        assert ring.secrets(SHOP, NOW) == [derive_secret(OTHER, SHOP, 2)]
        assert ring.missing_masters(NOW + DAY_MS) == {}


class TestSignatures:
    def test_the_vector_of_the_standard_is_signed_the_same(self) -> None:
        """From the Standard Webhooks' and Svix' documents."""
        key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        body = b'{"test": 2432232314}'
        [context] = [prepare_context(derive_secret(MASTER, SHOP, 1)._replace(key=key))]
        signed = format_signatures([context], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
        assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

    @given(st.binary(min_size=32, max_size=32), st.binary(max_size=200))
    def test_a_context_signs_as_an_hmac_does(self, key: bytes, message: bytes) -> None:
        expected = base64.b64encode(hmac.digest(key, b"a.1." + message, "sha256")).decode()
        assert format_signatures([prepare_context(Secret(key))], "a", 1, message) == f"v1,{expected}"

    @settings(max_examples=10 * settings().max_examples)
    @given(
        content=st.text(max_size=200) | st.sampled_from(["", '"\\', "\u2028", "größe"]),
        topic=st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=20),
        id=st.from_regex(r"[A-Za-z0-9._~:-]{1,128}", fullmatch=True),
        generations=st.integers(1, 3),
    )
    def test_the_standards_own_package_verifies_each_live_secret_and_no_other(
        self, content: str, topic: str, id: str, generations: int
    ) -> None:
        ring = KeyRing([MASTER])
        for _ in range(1, generations):
            ring = rotate(ring)
        task = a_task(id=id, topic=topic, content=content)
        body = encode_body(task)
        secrets = ring.secrets(SHOP, NOW)
        signed = format_signatures([prepare_context(secret) for secret in secrets], task.id, NOW // 1000, body)
        headers = {"webhook-id": id, "webhook-timestamp": str(NOW // 1000), "webhook-signature": signed}
        for secret in secrets:
            assert verify(secret.text, headers, body) == {"id": id, "topic": topic, "content": content}
        for change in ({"webhook-id": f"{id}x"}, {"webhook-timestamp": str(NOW // 1000 - 1)}):
            with pytest.raises(WebhookVerificationError):
                verify(secrets[0].text, headers | change, body)
        with pytest.raises(WebhookVerificationError):
            verify(derive_secret(MASTER, SHOP, generations + 1).text, headers, body)
        with pytest.raises(WebhookVerificationError):
            verify(secrets[0].text, headers, body + b" ")

    def test_a_delivery_is_refused_when_it_is_more_than_five_minutes_old(self) -> None:
        [secret] = KeyRing([MASTER]).secrets(SHOP, NOW)
        body = json.dumps({}).encode()
        headers = {"webhook-id": "x", "webhook-timestamp": str(NOW // 1000)}
        headers["webhook-signature"] = format_signatures([prepare_context(secret)], "x", NOW // 1000, body)
        assert verify(secret.text, headers, body, NOW // 1000 + 299) == {}
        with pytest.raises(WebhookVerificationError):
            verify(secret.text, headers, body, NOW // 1000 + 301)


def test_a_generation_is_stored_without_what_it_does_not_have() -> None:
    stored = msgspec.json.encode([Generation(2, "630dcd29", 5), Generation(1, "630dcd29", None, 9)])
    assert stored == b'[{"g":2,"master":"630dcd29","since":5},{"g":1,"master":"630dcd29","until":9}]'
