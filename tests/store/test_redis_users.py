"""The users of deploy/redis.conf can run what later runs, on later's keys, and nothing else."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import later
from later.bulk.transport.store import StoreTransport
from later.client.transport import CreateCounts, TaskStatus
from later.core.errors import StoreDown
from later.store import scripts
from later.store.keys import Bucket, Keys
from later.store.policy_reader import PAGE
from later.store.scripts import Script
from later.store.settings import StoreSettings
from tests.bulk.conftest import lay_out
from tests.redis_users import commands_of, run_configured_server, url_as, user_rules
from tests.servers import SERVERS, run_server, shared_server
from tests.store_fixture import open_as_it_is

STORE = Path(later.__file__).parent / "store"
DAEMONS = ("later", "later-api", "later-worker")
CONNECTION = {"ping", "role", "select", "client|setname", "evalsha", "evalsha_ro", "script|load"}
"""Commands that redis-py and the client need, whatever the verb."""
CLUSTER = {"cluster|shards", "cluster|slots", "cluster|info", "cluster|myid", "asking", "ssubscribe", "spublish"}
"""Commands that are for the nodes of a cluster."""
POOL = "{later:0}:pool"
OPERATOR_ONLY = {"scan", "pttl", "xlen", "xrange"}
"""Commands of `status`, `doctor`, `audit` and `move`, which people run."""

BLOCKING = {
    "blmove": (POOL, POOL, "LEFT", "RIGHT", "1"),
    "blmpop": ("1", "1", POOL, "LEFT"),
    "blpop": (POOL, "1"),
    "brpop": (POOL, "1"),
    "brpoplpush": (POOL, POOL, "1"),
    "bzmpop": ("1", "1", POOL, "MIN"),
    "bzpopmax": (POOL, "1"),
    "bzpopmin": (POOL, "1"),
    "wait": ("1", "1"),
    "waitaof": ("0", "1", "1"),
    "xread": ("BLOCK", "1", "STREAMS", POOL, "0"),
    "xreadgroup": ("GROUP", "g", "c", "BLOCK", "1", "STREAMS", POOL, "0"),
}
"""The commands that wait in the server, with arguments."""


@pytest.fixture
def server() -> Iterator[redis.Redis]:
    """The shared server, empty, with the users of the file until the end of the test."""
    with redis.Redis.from_url(shared_server()) as client:
        client.flushall()
        client.response_callbacks.clear()
        for user, rules in user_rules().items():
            run(client, "ACL", "SETUSER", user, *rules)
        yield client
        run(client, "ACL", "DELUSER", *user_rules())


def run(server: redis.Redis, *command: str | bytes) -> Any:
    """Run a command and return its answer as the server gives it."""
    return server.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py's


def commands_in_scripts() -> dict[str, set[str]]:
    """Return the commands that each script's own source calls, and the prelude's under its name."""
    sources = {name: value.source for name, value in vars(scripts).items() if isinstance(value, Script)}
    called = re.compile(r"""redis\.p?call\(['"]([A-Z]+)['"]""")
    for source in sources.values():
        assert len(called.findall(source)) == len(re.findall(r"redis\.p?call\(", source)), (
            "a command that is no literal"
        )
    return {name: {command.lower() for command in called.findall(source)} for name, source in sources.items()}


def commands_in_python(server: redis.Redis) -> set[str]:
    """Return the commands of the server whose names are in the modules of the store."""
    known = {name.decode() for name in run(server, "COMMAND", "LIST")}
    names = {
        node.value.lower()
        for file in STORE.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isupper()
    }
    return (names & known - {"cluster", "config", "readonly", "script"}) | {"config|get", "script|load"}


def test_each_daemon_may_run_every_command_of_every_script() -> None:
    for user in (*DAEMONS, "later-operator"):
        for script, commands in commands_in_scripts().items():
            assert commands <= commands_of(user), f"{user} cannot run {script}"


def test_no_user_may_run_a_command_that_later_never_runs(server: redis.Redis) -> None:
    in_scripts, in_python = set[str]().union(*commands_in_scripts().values()), commands_in_python(server)
    used = in_scripts | in_python | CONNECTION | CLUSTER
    for user in user_rules().keys() - {"admin"}:
        assert commands_of(user) <= used, user
    used -= {"waitaof"}  # which Redis 7.0 does not know: it would not start
    assert commands_of("later-operator") == used, "see deploy/redis.conf"
    for user in DAEMONS:
        of_api = {"xadd", "subscribe", "ssubscribe", "lrange", "get"} if user == "later-worker" else set()
        assert commands_of(user) == used - OPERATOR_ONLY - of_api, f"see {user} in deploy/redis.conf"


@pytest.mark.parametrize("name", SERVERS)
def test_of_the_commands_that_wait_users_may_run_those_alone_that_wait_for_replicas(name: str, tmp_path: Path) -> None:
    waits = {"wait", "waitaof"} if name == "valkey" else {"wait"}  # Debian's Redis is 7.0
    with run_configured_server(tmp_path, name) as url, redis.Redis.from_url(url_as("admin", url)) as server:
        known = {command.decode() for command in run(server, "ACL", "CAT", "blocking")}
        assert known <= BLOCKING.keys(), "each needs a rule in deploy/redis.conf"
        for user in user_rules().keys() - {"admin"}:
            allowed = {command for command in known | {"wait"} if may(server, user, command, *BLOCKING[command])}
            assert allowed == (set() if user == "later-spark" else waits), user


def test_the_monitor_may_run_no_command_that_writes(server: redis.Redis) -> None:
    flags = {name: run(server, "COMMAND", "INFO", name)[0][2] for name in commands_of("later-monitor")}
    assert not {name for name, found in flags.items() if b"write" in found}


def may(server: redis.Redis, user: str, *command: str | bytes) -> bool:
    return bool(run(server, "ACL", "DRYRUN", user, *command) == b"OK")


def test_only_the_operator_can_make_a_key_and_only_those_who_need_them_read_keys(server: redis.Redis) -> None:
    keys, users = Keys("later", 16), user_rules().keys() - {"admin"}
    writers = {user for user in users if may(server, user, "HSET", keys.api_keys, "id", "record")}
    readers = {user for user in users if may(server, user, "HGETALL", keys.api_keys)}
    assert (writers, readers) == ({"later-operator"}, {*DAEMONS, "later-operator"})
    notes = {user for user in users if may(server, user, "HSET", keys.key_uses, "id", "0")}
    assert notes == {*DAEMONS, "later-operator"}
    record = ("XADD", keys.audit_trail, "*", "event", "{}")
    assert {user for user in users if may(server, user, *record)} == {"later", "later-api", "later-operator"}
    assert {user for user in users if may(server, user, "XRANGE", keys.audit_trail, "-", "+")} == {"later-operator"}
    for command in (("FLUSHALL",), ("KEYS", "*"), ("CONFIG", "SET", "dir", "/"), ("DEL", "other"), ("GET", "x"),
                    ("EVAL", "return 1", "0"), ("ACL", "LIST"), ("DEBUG", "SLEEP", "1")):  # fmt: skip
        assert not {user for user in users if may(server, user, *command)}, command


def test_daemons_reach_every_key_that_tasks_and_policies_have(server: redis.Redis) -> None:
    keys = Keys("later", 16)
    shard = keys.shards[15]
    reached = [
        keys.meta, keys.workers, keys.policies, keys.policy_changes, keys.ramps, keys.held_origin_topics,
        keys.snapshot, keys.counting, keys.instances, keys.shard_workers, keys.event_counts, keys.event_outbox,
        keys.permits("shop/order"), keys.origin_holds("shop/order"), shard.pool, shard.attempts, shard.outcome,
        shard.done, shard.jobs, shard.expiry, shard.topics, shard.job("j"), *shard.wakes.values(), shard.schedules,
        shard.schedule_states, shard.firings, shard.schedule_index, shard.barrier,
        *(shard.bucket(bucket, b"shop/order") for bucket in Bucket), keys.history(10_000, 0), keys.history_topics(0),
        keys.sampled_deliveries,
    ]  # fmt: skip
    for user in (*DAEMONS, "later-operator"):
        for key in reached:
            assert may(server, user, "EVALSHA", "0", "1", key), (user, key)


@pytest.mark.parametrize("name", sorted(SERVERS))
@pytest.mark.parametrize("command", ["hlen", "hscan"])
def test_a_user_with_the_rules_of_an_older_version_is_told_where_those_of_this_one_are(
    name: str, command: str, tmp_path: Path
) -> None:
    """`hlen` is run by a script, and `hscan` by itself: a server words the two differently."""

    async def read_policies(url: str) -> None:
        async with open_as_it_is(url_as("later-worker", url)) as store:
            await store.redis.hset(store.keys.policies, mapping={f"topic:t{n}": b"{}" for n in range(PAGE + 1)})
            await store.policies.read()

    with run_configured_server(tmp_path, name) as url, redis.Redis.from_url(url_as("admin", url)) as server:
        run(server, "ACL", "SETUSER", "later-worker", f"-{command}")
        with pytest.raises(StoreDown, match=r"^the store refuses this user: .* command.*: give it the rules that"):
            asyncio.run(read_policies(url))


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_each_user_may_run_on_the_nodes_of_a_cluster_what_it_needs_there(name: str, tmp_path: Path) -> None:
    """Of Redis, too, where it is installed: it must know these rules, and keep the same ones apart."""
    channel, users = b"{later:255.477}:bell", user_rules().keys() - {"admin"}
    about_nodes = [("CLUSTER", part) for part in ("SHARDS", "SLOTS", "INFO", "MYID")]
    with run_server(name, tmp_path) as (url, _), redis.Redis.from_url(url) as server:
        for user, rules in user_rules().items():
            run(server, "ACL", "SETUSER", user, *rules)
        for command in (*about_nodes, ("ASKING",), ("ROLE",), ("TIME",), ("INFO",)):
            assert {user for user in users if may(server, user, *command)} == users, command
        for command in (("CLUSTER", "FAILOVER"), ("CLUSTER", "RESET"), ("CLUSTER", "SETSLOT", "1", "NODE", "x"),
                        ("CLUSTER", "FORGET", "x"), ("READONLY",), ("SPUBLISH", "{other:0}:bell", "x"),
                        ("SSUBSCRIBE", "{other:0}:bell")):  # fmt: skip
            assert not {user for user in users if may(server, user, *command)}, command
        publishers = users - {"later-monitor"}
        assert {user for user in users if may(server, user, "SPUBLISH", channel, "x")} == publishers
        assert {user for user in users if may(server, user, "PUBLISH", "later:bell", "x")} == publishers
        listeners = {"later", "later-api", "later-operator"}
        assert {user for user in users if may(server, user, "SSUBSCRIBE", channel)} == listeners
        assert {user for user in users if may(server, user, "SUBSCRIBE", "later:bell")} == listeners


def test_a_bulk_job_can_work_on_the_store_as_its_own_user(server: redis.Redis) -> None:
    url = shared_server()
    asyncio.run(lay_out(StoreSettings(url=url, prefix="later", timeout_s=10), shards=16))
    run(server, "ACL", "LOG", "RESET")
    transport = StoreTransport(StoreSettings(url=url_as("later-spark", url), prefix="later", timeout_s=10), "j")
    try:
        body = b'{"id": "a", "topic": "shop/order", "callback": "http://127.0.0.1:9/", "delay": 60}'
        assert transport.validate([body]).errors == {}
        assert (transport.create([body]).created, transport.create([body]).existing) == (1, [0])
        assert transport.query(["a", "b"]) == [TaskStatus.PENDING, TaskStatus.MISSING]
        assert transport.cancel(["a"]) == [TaskStatus.PENDING]
        assert transport.counts() == CreateCounts(created=1)
    finally:
        transport.close()
    assert run(server, "ACL", "LOG") == []
