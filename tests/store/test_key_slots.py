"""Servers of a cluster put keys into the slots that are computed for them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import redis

from later.core.hash_slots import key_slot
from tests.servers import free_ports, run_server


def test_servers_take_the_same_slots(tmp_path: Path) -> None:
    random = Random(1)
    keys = [bytes(random.choices(b"{}ab:7", k=random.randrange(1, 12))) for _ in range(500)]
    options = ("--port", str(free_ports(1)[0]), "--cluster-enabled", "yes")
    with run_server("valkey", tmp_path, *options) as (url, _), redis.Redis.from_url(url) as server:
        found = [server.execute_command("CLUSTER KEYSLOT", key) for key in keys]
    assert [key_slot(key) for key in keys] == found
