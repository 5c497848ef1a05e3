"""The script that counts how often idle workers look at shards."""

from __future__ import annotations

from scripts.idle_looks import measure
from tests.servers import shared_server
from tests.store_fixture import StoreFixture


async def test_workers_that_share_shards_cost_a_part_of_those_that_do_not(store: StoreFixture) -> None:
    shared = await measure(shared_server(), 20, 64, 1, shares=True)
    alone = await measure(shared_server(), 20, 64, 1, shares=False)
    assert (shared.most_looks, alone.most_looks) == (7, 64)
    assert alone.looks == 12_800
    assert shared.looks < 1920
    assert shared.commands < alone.commands / 6
