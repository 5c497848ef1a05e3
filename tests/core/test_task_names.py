"""Names of tasks: ids with a namespace in front, and what the store and callers make of them."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from later.core.api_keys import ALL_SCOPES
from later.core.caller import Caller
from later.core.errors import Refused
from later.core.task import decode_task, encode_task, new_id, pack_id, unpack_id
from later.core.task_names import can_be_in, id_of, is_namespaced, name_of, name_prefix, pack_remembered
from later.core.validation import check_namespace
from later.store.keys import Keys
from tests.builders import a_task

UUID = "0190163d-8694-739b-aea5-966c26f8ad90"


def is_namespace(text: str) -> bool:
    try:
        return check_namespace(text) == text
    except Refused:
        return False


namespaces = st.text(min_size=1, max_size=12).filter(is_namespace)
ids = st.one_of(st.from_regex(r"[A-Za-z0-9._~:-]{1,12}", fullmatch=True), st.just(UUID))


@given(namespaces, ids)
@example("aaaaaaaé", "123456")  # 16 bytes of UTF-8, of which byte 8 could be that of a UUID
@example("ab", "cdefghijklmno")
def test_every_name_is_an_id_of_ascii_that_the_store_keeps(namespace: str, id: str) -> None:
    name = f"{name_prefix(namespace)}{id}"
    assert name.isascii()
    assert is_namespaced(name)
    assert unpack_id(pack_id(name)) == id_of(name)
    assert id_of(name) == (UUID if id == UUID else name)
    assert unpack_id(pack_remembered(name)) == name


@given(namespaces, namespaces, ids)
def test_a_bound_caller_names_no_task_of_another_namespace(namespace: str, other: str, id: str) -> None:
    caller = Caller(key_id="k", namespace=namespace, scopes=ALL_SCOPES)
    name = caller.task_name(id)
    assert name == caller.task_name(name) == caller.task_name(f"{namespace}/{id}")
    assert can_be_in(name, f"{namespace}/x")
    if other != namespace:
        assert not can_be_in(name, f"{other}/x")
        foreign = caller.task_name(f"{name_prefix(other)}{id}")
        assert foreign == f"{name_prefix(namespace)}{name_prefix(other)}{id}"
        assert not can_be_in(foreign, f"{other}/x")
        assert id_of(foreign) == f"{name_prefix(other)}{id}"


def test_a_uuid_has_one_shard_and_16_bytes_whoever_names_it() -> None:
    keys = Keys("later", 16)
    for uuid in (UUID, *(new_id() for _ in range(50))):
        assert pack_id(f"team/{uuid}") == pack_id(uuid)
        assert len(pack_id(uuid)) == 16
        assert keys.shard_of(f"team/{uuid}") is keys.shard_of(uuid)
    assert pack_id(f"team/other/{UUID}") == f"team/other/{UUID}".encode()


def test_a_body_says_whether_a_namespace_has_chosen_its_uuid() -> None:
    plain = a_task(id=UUID, own_id=True, topic="team/x")
    chosen = a_task(id=UUID, own_id=True, topic="team/x", is_namespaced_uuid=True)
    renewed = a_task(id=UUID, own_id=True, topic="team/x", is_namespaced_uuid=True, renewed_at=chosen.created_at + 7)
    for task in (plain, chosen, renewed):
        assert decode_task(UUID, encode_task(task)) == task
    assert [name_of(task) for task in (plain, chosen, renewed)] == [UUID, f"team/{UUID}", f"team/{UUID}"]
    assert len(encode_task(chosen)) == len(encode_task(plain)) + 2
