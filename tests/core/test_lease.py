from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core.errors import Refused
from later.core.lease import Lease, decode_lease, encode_lease, lease_of
from later.core.task import new_id
from later.core.task_names import name_of
from later.core.validation import MAX_TTL_MS
from tests.builders import NOW, a_task

FENCE = 2**52 - 1


def a_token() -> str:
    return encode_lease(Lease(topic="shop/order", id="a", fence=FENCE, due_at=NOW))


@given(
    topic=st.sampled_from(["order", "shop/order", "Übersicht/ä", "x" * 255]),
    id=st.one_of(st.builds(new_id), st.sampled_from(["a", "team/order-1", "~" * 128, f"{'%C3%84' * 127}/{'x' * 128}"])),
    fence=st.integers(1, 2**53 - 1),
    due_at=st.integers(0, 2**53 - 1),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    remember_ms=st.none() | st.integers(0, MAX_TTL_MS),
)
def test_a_token_is_decoded_to_the_lease_that_it_was_made_from(
    topic: str, id: str, fence: int, due_at: int, flags: tuple[bool, bool, bool], remember_ms: int | None
) -> None:
    has_ttl, own_id, is_namespaced_uuid = flags
    lease = Lease(
        topic=topic,
        id=id,
        fence=fence,
        due_at=due_at,
        has_ttl=has_ttl,
        own_id=own_id,
        is_namespaced_uuid=is_namespaced_uuid,
        remember_ms=remember_ms,
    )
    token = encode_lease(lease)
    assert decode_lease(token) == lease
    assert token.replace("-", "").replace("_", "").isalnum()


def test_the_lease_of_a_namespaces_uuid_has_the_name_of_its_task() -> None:
    for task in (a_task(), a_task(topic="team/x", id=new_id(), own_id=True, is_namespaced_uuid=True)):
        assert lease_of(task, FENCE, NOW).name == name_of(task)


def test_text_that_is_no_token_is_refused_by_the_field() -> None:
    token = a_token()
    wrong = ["", "a", "=", "ä", token[:-1], token + "A", token + "=", token[:10], "B" + token[1:], "A" * 3000, "\ud800"]
    for text in wrong:
        with pytest.raises(Refused) as refused:
            decode_lease(text)
        assert refused.value.field == "leases"


def test_a_token_with_a_topic_that_no_task_can_have_is_refused() -> None:
    for topic in ("", "a//b", "a\n", "default/x"):
        token = encode_lease(Lease(topic=topic, id="a", fence=1, due_at=NOW))
        with pytest.raises(Refused):
            decode_lease(token)
