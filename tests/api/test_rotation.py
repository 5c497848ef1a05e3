"""The calls that rotate signing secrets: the answer has the new secret once, and no other call has any."""

from __future__ import annotations

import pytest

from later.core.audit_event import AuditAction
from later.core.clock import rfc3339
from later.core.policy import Sign
from later.core.signing import Master, SecretScope, derive_secret
from tests.api.api_fixture import ApiFixture, bad_request, serve_api
from tests.api.callers import NamedCallers, Tenant
from tests.builders import NOW

MASTER = Master(bytes(range(32)))
SHOP = SecretScope(Sign.NAMESPACE, "shop")
DAY_MS = 86_400_000


@pytest.fixture
def signing_api(api: ApiFixture) -> ApiFixture:
    """Return an API that has a signing key."""
    api.store.signing.use_masters([MASTER])
    return api


def secret(generation: int, scope: SecretScope = SHOP) -> str:
    return derive_secret(MASTER, scope, generation).text


async def test_a_rotation_answers_the_new_secret_and_the_end_of_the_old_one(signing_api: ApiFixture) -> None:
    status, answer = await signing_api.post("/namespaces/shop/signing/rotate", {"overlap": 60})
    since = answer["generations"][0]["since"]
    now = (await signing_api.store.time.now()).low
    assert (status, answer) == (
        200,
        {
            "namespace": "shop",
            "generations": [
                {"generation": 2, "since": since, "until": None},
                {"generation": 1, "since": None, "until": rfc3339(now + 60_000)},
            ],
            "secret": secret(2),
        },
    )
    assert abs(now - NOW) < 10


async def test_what_signs_is_shown_without_a_secret(signing_api: ApiFixture) -> None:
    assert await signing_api.get("/topics/shop%2Forder/signing") == (
        200,
        {"topic": "shop/order", "generations": [{"generation": 1, "since": None, "until": None}]},
    )
    await signing_api.post("/topics/shop%2Forder/signing/rotate", b"")
    status, answer = await signing_api.get("/topics/shop%2Forder/signing")
    assert (status, [found["generation"] for found in answer["generations"]]) == (200, [2, 1])
    assert "whsec_" not in str(answer)


async def test_the_default_overlap_is_a_day_and_0_ends_the_old_secret_at_once(signing_api: ApiFixture) -> None:
    _, by_default = await signing_api.post("/namespaces/shop/signing/rotate", b"")
    _, null = await signing_api.post("/namespaces/other/signing/rotate", {"overlap": None})
    now = (await signing_api.store.time.now()).low
    assert by_default["generations"][1]["until"] == null["generations"][1]["until"] == rfc3339(now + DAY_MS)
    _, at_once = await signing_api.post("/namespaces/shop/signing/rotate", {"overlap": 0})
    assert [found["generation"] for found in at_once["generations"]] == [3]


async def test_a_fourth_secret_is_answered_409(signing_api: ApiFixture) -> None:
    for _ in range(2):
        assert (await signing_api.post("/namespaces/shop/signing/rotate", {}))[0] == 200
    status, problem = await signing_api.post("/namespaces/shop/signing/rotate", {})
    assert (status, problem["type"]) == (409, "/problems/too-many-secrets")
    assert (await signing_api.post("/namespaces/shop/signing/rotate", {"overlap": 0}))[0] == 200


async def test_without_a_signing_key_nothing_is_rotated(api: ApiFixture) -> None:
    status, problem = await api.post("/namespaces/shop/signing/rotate", {})
    assert (status, problem["type"]) == (409, "/problems/changed")
    assert "--signing-key" in problem["detail"]
    assert await api.get("/namespaces/shop/signing") == (200, {"namespace": "shop", "generations": []})


async def test_a_wrong_request_is_refused_by_its_field_and_changes_nothing(signing_api: ApiFixture) -> None:
    path = "/namespaces/shop/signing/rotate"
    for overlap, got in ((-1, "-1"), (2_592_001, "2592001"), ("1d", '"1d"'), (True, "true")):
        detail = f"overlap: expected a number of seconds from 0 to 2592000, got {got}"
        assert await signing_api.post(path, {"overlap": overlap}) == bad_request(detail, "overlap")
    assert (await signing_api.post(path, {"overlop": 1}))[1]["field"] == "overlop"
    assert (await signing_api.post("/namespaces/a%2Fb/signing/rotate", {}))[1]["field"] == "namespace"
    _, answer = await signing_api.get("/namespaces/shop/signing")
    assert len(answer["generations"]) == 1


async def test_a_rotation_is_recorded_without_its_secret(signing_api: ApiFixture) -> None:
    await signing_api.post("/topics/shop%2Forder/signing/rotate", {"overlap": 1.5})
    await signing_api.store.audit_trail.flush()
    [entry] = [entry async for entry in signing_api.store.audit_trail.read()]
    assert (entry.fields["event"], entry.fields["namespace"], entry.fields["topic"]) == (
        AuditAction.SIGNING_ROTATED,
        "shop",
        "shop/order",
    )
    assert (entry.fields["generation"], entry.fields["overlap"], entry.fields["outcome"]) == (2, 1.5, "done")
    assert "whsec_" not in str(entry)


async def test_a_bound_key_rotates_the_secrets_of_its_namespace_and_of_no_other() -> None:
    async with serve_api(authorization=NamedCallers()) as api:
        api.store.signing.use_masters([MASTER])
        shop = Tenant(api, "shop")
        for path in ("/namespaces/shop/signing", "/topics/shop%2Forder/signing"):
            assert (await shop.get(path))[0] == 200
            assert (await shop.post(f"{path}/rotate", {}))[0] == 200
        for path in ("/namespaces/team/signing", "/topics/team%2Forder/signing", "/topics/order/signing"):
            for status, problem in (await shop.get(path), await shop.post(f"{path}/rotate", {})):
                assert (status, problem["type"]) == (403, "/problems/not-allowed")
        assert (await api.store.signing.read()).rotated.keys() == {SHOP, SecretScope(Sign.TOPIC, "shop/order")}
