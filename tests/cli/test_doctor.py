"""The command `doctor`."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

import click
import pytest

from later.cli.commands.doctor import choose_shards, examine_store, print_warnings, shard_range
from later.core.clock import Clock
from later.core.policy import Sign
from later.core.signing import Master, SecretScope
from later.store.keys import Bucket, Keys
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.cli.api_stub import Capture
from tests.store.inspection import no_names
from tests.store_fixture import StoreFixture


async def examine(store: StoreFixture, *, repair: bool, as_json: bool) -> int:
    return await examine_store(store, store.keys.shards, repair=repair, as_json=as_json)


async def test_a_healthy_store_exits_with_0(store: StoreFixture, capsys: Capture) -> None:
    await store.tasks.create([a_task(), a_task()])
    assert await examine(store, repair=False, as_json=False) == 0
    assert capsys.readouterr().out == "2 tasks and 2 bucket entries read: nothing is wrong\n"


async def lose_a_task(store: StoreFixture) -> None:
    """Take one task out of its bucket."""
    await store.tasks.create([a_task(id="lost", own_id=True)])
    await store.redis.zrem(store.keys.shard_of("lost").bucket(Bucket.DELAY, b"order"), b"lost")


async def test_findings_exit_with_1_until_they_are_repaired(store: StoreFixture, capsys: Capture) -> None:
    await lose_a_task(store)
    assert await examine(store, repair=False, as_json=False) == 1
    out = capsys.readouterr().out
    assert "'lost'" in out.splitlines()[0]
    assert out.endswith("wrong; use --repair to repair\n")
    assert await examine(store, repair=True, as_json=False) == 0
    assert "; repaired\n" in capsys.readouterr().out
    assert await examine(store, repair=False, as_json=False) == 0


async def test_findings_are_printed_as_json(store: StoreFixture, capsys: Capture) -> None:
    await lose_a_task(store)
    assert await examine(store, repair=True, as_json=True) == 0
    finding, *_, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert (finding["id"], finding["kind"], finding["topic"], finding["mended"]) == ("lost", "nowhere", "order", True)
    assert summary["tasks"] == 1
    assert summary["mended"] >= 1


async def test_on_a_terminal_a_bar_shows_what_is_checked_and_leaves_the_output_alone(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pytest.importorskip("rich")
    await lose_a_task(store)
    await store.tasks.create([a_task() for _ in range(9)])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert await examine(store, repair=False, as_json=True) == 1
    out, err = capsys.readouterr()
    *found, summary = map(json.loads, out.splitlines())
    assert (found[0]["id"], summary["tasks"]) == ("lost", 10)
    assert "/10" in err
    assert f"of {len(store.keys.shards)} shards" in err


async def test_elsewhere_there_is_no_bar(store: StoreFixture, capsys: Capture) -> None:
    assert await examine(store, repair=False, as_json=True) == 0
    assert capsys.readouterr().err == ""


@each_case("text", ["", "x", "-1", "3-", "-3", "3-2", "1-2-3", "1,2", "٣", "123456", " 1"])
def test_a_range_of_shards_is_two_numbers_in_order(text: str) -> None:
    with pytest.raises(ValueError, match="a range of shards"):
        shard_range(text)


def test_shards_are_chosen_by_number() -> None:
    shards = Keys("later", 16).shards
    assert choose_shards(shards, None) == shards
    for text, first, last in [("0-15", 0, 15), ("3", 3, 3), ("4-7", 4, 7)]:
        assert [shard.index for shard in choose_shards(shards, shard_range(text))] == [*range(first, last + 1)]
    with pytest.raises(click.UsageError, match=r"no shard 16; those of the store are 0-15"):
        choose_shards(shards, shard_range("15-16"))


async def test_a_repair_lists_the_topics_again_that_are_missing_in_the_index(store: StoreFixture) -> None:
    await store.tasks.create([a_task(topic="shop/a"), a_task(topic="shop/b")])
    for shard in store.keys.shards:
        await store.redis.delete(shard.topics)
    assert await store.topic_index.page(no_names, NOW, limit=9) == {}
    assert await examine(store, repair=True, as_json=False) == 0
    assert [*await store.topic_index.page(no_names, NOW, limit=9)] == ["shop/a", "shop/b"]


async def test_a_clock_that_is_wrong_and_a_key_that_is_missing_are_warned_of(
    store: StoreFixture, capsys: Capture
) -> None:
    await print_warnings(store)
    assert capsys.readouterr().err == ""
    lost, kept = Master(bytes(32)), Master(bytes(range(32)))
    store.signing.use_masters([lost])
    await store.signing.rotate(SecretScope(Sign.NAMESPACE, "shop"), 0)
    store.signing.use_masters([kept])
    late = Clock(time.monotonic, lambda: time.time() - 90)
    late.observe(int(time.time() * 1_000_000), time.monotonic(), time.monotonic())
    await print_warnings(replace(store, clock=late))
    clock, key = capsys.readouterr().err.splitlines()
    assert clock.startswith("later: the store's clock is 90 s ahead of this machine's: ")
    assert key == f"later: the signing key {lost.fingerprint} is missing, of the secrets of namespace shop"
