"""API keys of real daemons: who may listen, how fast a key is made and revoked, and where a key is never seen."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.system import canaries
from tests.system.api_client import Answer, call
from tests.system.daemons import COMMAND, Daemon, environment, run_command, run_daemon, run_daemon_as_given, run_up
from tests.system.stores import StoreServer
from tests.system.waiting import wait_until

TASK = {"topic": "order", "callback": "http://127.0.0.1:9/", "delay": 3600}
NO_KEYS = (
    'later: cannot listen on 0.0.0.0:0 without keys: make one with "later keys create --scopes admin", '
    "or set LATER_ROOT_KEY, or say --auth off"
)
SEEN_WITHIN_S = 2.5


def make_key(data: Path, *options: str) -> str:
    made = run_command("keys", "create", "test", *options, "--data", str(data))
    assert made.returncode == 0, made.stderr
    assert made.stdout[:-1] not in made.stderr
    return canaries.add_key(made.stdout.strip())


def make_root_key() -> str:
    return canaries.add_key(run_command("keys", "make").stdout.strip())


def send(later: Daemon, key: str | None, method: str = "POST", path: str = "/create", body: Any = TASK) -> Answer:
    return call(later.url, method, path, body, headers={} if key is None else {"Authorization": f"Bearer {key}"})


def test_a_daemon_that_others_reach_starts_only_with_a_key(folder: Path, data: Path, processes: int) -> None:
    with run_daemon_as_given("up", folder, "--data", str(data), "--listen", "0.0.0.0:0") as refused:
        assert refused.wait_for_exit() == 1
        assert refused.log.read_text().splitlines()[-1] == NO_KEYS
    root = make_root_key()
    for options, env, statuses in (
        ((), {"LATER_ROOT_KEY": root}, (401, 200)),
        (("--auth", "off"), {}, (200, 200)),
    ):
        listening = ("--data", str(data), "--listen", "0.0.0.0:0", *options)
        with run_daemon_as_given("up", folder, *listening, env=env) as up:
            assert (send(up, None).status, send(up, root).status) == statuses
            assert up.stop() == 0
    key = make_key(data, "--scopes", "create")
    with run_daemon_as_given("up", folder, "--data", str(data), "--listen", "0.0.0.0:0") as up:
        assert (send(up, None).status, send(up, key).status, send(up, root).status) == (401, 200, 401)


def test_a_key_is_known_and_revoked_everywhere_within_two_and_a_half_seconds(folder: Path, data: Path) -> None:
    with run_up(folder, data) as up, run_daemon("serve", folder, "--data", str(data)) as serve:
        daemons = (up, serve)
        assert [send(later, None).status for later in daemons] == [200, 200]
        key = make_key(data, "--scopes", "create,read", "--namespace", "default")
        time.sleep(SEEN_WITHIN_S)
        for _ in range(8):  # whichever process accepts the connection
            assert [send(later, key).status for later in daemons] == [200, 200]
            assert [send(later, None).status for later in daemons] == [401, 401]
        for _ in range(3):  # calls need keys, so a new one is known at once
            new = make_key(data, "--scopes", "create")
            assert [send(later, new).status for later in daemons * 4] == [200] * 8
        wait_until(
            lambda: json.loads(run_keys(data, "show", key[6:14], "--json"))["last_used_at"], "its use is written"
        )
        run_keys(data, "revoke", key[6:14])
        time.sleep(SEEN_WITHIN_S)
        for _ in range(8):
            assert [send(later, sent).status for later in daemons for sent in (key, None)] == [401] * 4


def run_keys(data: Path, *arguments: str) -> str:
    done = run_command("keys", *arguments, "--data", str(data))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_rotated_key_works_until_the_overlap_ends(folder: Path, data: Path) -> None:
    with run_up(folder, data) as up:
        old = make_key(data, "--scopes", "create")
        ends_at = time.time() + 8
        new = canaries.add_key(run_keys(data, "rotate", old[6:14], "--overlap", "8s").strip())
        time.sleep(SEEN_WITHIN_S)
        assert (send(up, old).status, send(up, new).status) == (200, 200)
        wait_until(lambda: send(up, old).status == 401, "the overlap ends", 8)
        assert time.time() >= ends_at
        assert send(up, old).body["detail"].startswith("this key ended on ")
        assert send(up, new).status == 200


def test_a_daemon_whose_store_is_away_answers_503_until_it_has_read_the_keys(folder: Path, store: StoreServer) -> None:
    made = run_command("keys", "create", "--scopes", "all", "--redis", store.url)
    key = canaries.add_key(made.stdout.strip())
    assert made.returncode == 0, made.stderr
    store.kill()
    listening = ("--redis", store.url, "--listen", "0.0.0.0:0", "--store-timeout", "1")
    with run_daemon_as_given("serve", folder, *listening) as serve:
        for sent in (key, None):
            for method, path in (("POST", "/create"), ("GET", "/metrics"), ("GET", "/whoami"), ("GET", "/topics")):
                assert send(serve, sent, method, path, None).status == 503, path
        assert send(serve, None, "GET", "/livez", None).status == 200
        assert "6379" not in send(serve, None, "GET", "/readyz", None).body["detail"]


def test_the_metrics_of_a_worker_that_others_reach_need_a_key(folder: Path, data: Path) -> None:
    with run_up(folder, data):
        key = make_key(data, "--scopes", "metrics")
        for health, without_key in (("127.0.0.1:0", 200), ("0.0.0.0:0", 401)):
            with run_daemon_as_given("worker", folder, "--data", str(data), "--health", health) as worker:
                assert send(worker, None, "GET", "/metrics", None).status == without_key
                assert send(worker, key, "GET", "/metrics", None).status == 200
                assert send(worker, None, "GET", "/livez", None).status == 200


def test_a_key_is_seen_in_no_log_no_metric_no_error_and_no_list_of_processes(folder: Path, data: Path) -> None:
    root = make_root_key()
    (folder / "root.key").write_text(root + "\n")
    options = ("--root-key-file", str(folder / "root.key"), "--log-level", "debug")
    seen: list[object] = []
    with run_up(folder, data, *options) as up:
        key = make_key(data, "--scopes", "read")
        mistyped = key[:-1] + ("a" if key[-1] != "a" else "b")
        time.sleep(SEEN_WITHIN_S)
        for sent in (root, key, mistyped):
            seen += [send(up, sent, *route, {"id": 1}) for route in (("POST", "/create"), ("GET", "/metrics"))]
        seen.append(run_keys(data, "list"))
        seen.append(run_keys(data, "show", key[6:14]))
        for pid in (up.pid, *up.children()):
            seen += [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
        assert up.stop() == 0
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "root.key"]
    text = repr(seen) + "".join(path.read_bytes().decode("latin-1") for path in files)
    assert not [secret for secret in (root, key, mistyped) if secret[15:47] in text]


@pytest.mark.parametrize("source", ["variable", "file"])
def test_a_root_key_that_is_none_stops_the_start_without_being_shown(folder: Path, source: str) -> None:
    text = "later_0aB9zZ10_" + "x" * 38
    (folder / "root.key").write_text(text)
    env = {"LATER_ROOT_KEY": text} if source == "variable" else {"LATER_ROOT_KEY_FILE": str(folder / "root.key")}
    ended = subprocess.run(
        [*COMMAND, "up", "--listen", "127.0.0.1:0"], capture_output=True, text=True, check=False, cwd=folder,
        env={**environment(), **env}, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "its check digits are wrong" in ended.stderr
    assert text[15:] not in ended.stderr
    assert not os.path.exists(folder / "later-data")
