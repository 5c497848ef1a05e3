"""Signatures of real callbacks of real daemons, verified as receivers do."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from tests.system.api_client import call, create, query
from tests.system.daemons import run_command, run_daemon, run_up, secret_of
from tests.system.receivers import Call, Receiver
from tests.system.stores import StoreServer
from tests.system.waiting import sleep_until, wait_until

DOCUMENT = (Path(__file__).parent.parent.parent / "docs" / "receivers.md").read_text()
NODE = shutil.which("node")
ALLOW = ("--guard-allow", "127.0.0.0/8,::1")
PROPAGATION_S = 2.5
"""Every process signs with a new secret within this time."""
CONTENT = 'größe "\u2028" \\ 🎉'

PG_STUB = """
const fs = require("node:fs");
exports.Pool = class {
  async connect() {
    return {
      release() {},
      async query(text, values) {
        if (text.startsWith("INSERT INTO orders")) fs.appendFileSync("orders", values[0]);
        return { rowCount: 1 };
      },
    };
  }
};
"""
"""PostgreSQL's client, as far as the page's receiver uses it."""


def deliver(url: str, receiver: Receiver, **fields: object) -> Call:
    """Create a task that is due at once, and return its call."""
    id = create(url, callback=receiver.url(), content=CONTENT, **fields)
    wait_until(lambda: receiver.calls_of(id), "the task is delivered")
    return receiver.calls_of(id)[0]


def verifies(secret: str, received: Call) -> bool:
    """Return True if the package of the standard takes a call as one of this secret."""
    try:
        return bool(Webhook(secret).verify(received.content, dict(received.headers)) == received.body)
    except WebhookVerificationError:
        return False


def test_a_daemon_signs_without_being_configured_and_alike_after_a_restart(
    folder: Path, data: Path, receiver: Receiver
) -> None:
    with run_up(folder, data) as up:
        secret = secret_of(data)
        assert verifies(secret, deliver(up.url, receiver, topic="größe", id="a.b"))
        assert (data / "signing.key").stat().st_mode & 0o777 == 0o600
        assert up.stop() == 0
    with run_up(folder, data) as up:
        assert secret_of(data) == secret
        for _ in range(8):  # by each of its processes, most probably
            assert verifies(secret, deliver(up.url, receiver))


def test_a_key_that_is_made_for_data_that_was_there_before_is_a_warning(folder: Path, data: Path) -> None:
    with run_up(folder, data) as up:
        assert up.wait_for_event("signing key made")["file"] == str(data / "signing.key")
        assert up.stop() == 0
    (data / "signing.key").unlink()
    with run_up(folder, data) as up:
        assert "put it back" in up.wait_for_event("signing key is new to this data")["reason"]


def test_in_an_overlap_the_old_and_the_new_secret_verify_and_after_it_only_the_new_one(
    folder: Path, data: Path, receiver: Receiver
) -> None:
    overlap_s = 6.0
    with run_up(folder, data) as up:
        old = secret_of(data)
        answer = call(up.url, "POST", "/namespaces/default/signing/rotate", {"overlap": overlap_s})
        rotated_at, new = time.time(), str(answer.body["secret"])
        assert verifies(old, deliver(up.url, receiver))  # at once, whichever process delivers
        sleep_until(rotated_at + PROPAGATION_S)
        for _ in range(4):
            during = deliver(up.url, receiver)
            assert (verifies(new, during), verifies(old, during)) == (True, True)
        sleep_until(rotated_at + overlap_s)
        for _ in range(4):
            after = deliver(up.url, receiver)
            assert (verifies(new, after), verifies(old, after)) == (True, False)
        assert secret_of(data) == new


def test_a_policy_decides_what_has_a_secret_of_its_own(folder: Path, data: Path, receiver: Receiver) -> None:
    with run_up(folder, data, "--sign", "topic") as up:
        assert verifies(secret_of(data, "--topic", "order"), deliver(up.url, receiver))
        call(up.url, "PUT", "/namespaces/shop/policy", {"sign": "origin"})
        call(up.url, "PUT", "/topics/shop%2Fquiet/policy", {"sign": "off"})
        time.sleep(PROPAGATION_S)
        of_origin = secret_of(data, "--namespace", "shop", "--url", receiver.url("/x"))
        assert verifies(of_origin, deliver(up.url, receiver, topic="shop/order"))
        assert "webhook-signature" not in deliver(up.url, receiver, topic="shop/quiet").headers


def test_without_a_key_deliveries_are_not_signed_and_the_start_says_so(
    folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    with run_daemon("up", folder, "--redis", store.url, *ALLOW) as up:
        assert "webhook-signature" not in deliver(up.url, receiver).headers
        assert "--signing-key" in up.wait_for_event("deliveries are not signed")["reason"]


def test_what_cannot_be_signed_waits_for_its_key_without_spending_a_retry(
    folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    key, other = folder / "key", folder / "other"
    for file in (key, other):
        file.write_text(run_command("secrets", "init").stdout)
    access = ("--redis", store.url, "--signing-key")
    with run_daemon("up", folder, *access, str(key), *ALLOW) as up:
        _ = up.url
        secret = run_command("secrets", "rotate", "--namespace", "default", "--overlap", "0", *access, str(key)).stdout
    with run_daemon("up", folder, *access, str(other), *ALLOW) as up:
        id = create(up.url, callback=receiver.url(), retry=0)
        assert "is missing: add it to --signing-key" in up.wait_for_event("delivery not possible")["reason"]
        assert up.wait_for_event("signing key missing")["of"] == ["namespace default"]
        assert query(up.url, id)["state"] in ("delay", "unack")
        assert up.wait_for_event("signing key differs")["used"] != up.wait_for_event("signing key differs")["master"]
        assert "is missing" in run_command("doctor", *access, str(other)).stderr
    assert not receiver.calls_of(id)
    key.write_text(other.read_text() + key.read_text())
    with run_daemon("up", folder, *access, str(key), *ALLOW):
        wait_until(lambda: receiver.calls_of(id), "the task is delivered")
    assert verifies(secret.strip(), receiver.calls_of(id)[0])
    assert receiver.attempts(id) == [1]


# The receivers of the page


@contextmanager
def run_documented(language: str, folder: Path, port: int, secrets: str) -> Iterator[None]:
    """Run a receiver of the page, with these secrets, on a port."""
    code = re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)[-1]
    program = folder / ("receiver.py" if language == "python" else "receiver.cjs")
    program.write_text(code)
    stub = folder / "node_modules" / "pg"
    stub.mkdir(parents=True, exist_ok=True)
    (stub / "index.js").write_text(PG_STUB)
    environ: Mapping[str, str] = {**os.environ, "LATER_SIGNING_SECRETS": secrets}
    with (folder / f"{language}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable if language == "python" else str(NODE), str(program), str(port)],
            cwd=folder, env=environ, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_until(lambda: _listens(port), f"the receiver in {language} listens")
        yield
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def work_done(language: str, folder: Path) -> str:
    """Return the contents that a receiver has stored, one after the other."""
    if language == "python":
        with closing(sqlite3.connect(folder / "receiver.db")) as database:
            return "".join(content for (content,) in database.execute("SELECT content FROM orders"))
    return (folder / "orders").read_text(encoding="utf-8") if (folder / "orders").exists() else ""


@pytest.mark.parametrize(
    "language",
    ["python", pytest.param("js", marks=pytest.mark.skipif(NODE is None, reason="node is not on the PATH"))],
)
def test_the_receivers_of_the_page_do_what_is_signed_and_refuse_the_rest(
    folder: Path, data: Path, language: str
) -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with run_up(folder, data) as up:
        url, secret = f"http://127.0.0.1:{port}/", secret_of(data)
        with run_documented(language, folder, port, "whsec_AAAA"):
            refused = create(up.url, callback=url, content="x", retry=0)
            wait_until(lambda: query(up.url, refused)["state"] == "dead", "the task is refused")
            assert query(up.url, refused)["last_error"]["status"] == 401
        with run_documented(language, folder, port, f"whsec_AAAA {secret}"):
            id = create(up.url, id=f"in-{language}", callback=url, content=CONTENT, retry=0)
            wait_until(lambda: call(up.url, "POST", "/query", {"id": id}).body.get("ended"), "the task is done")
        assert work_done(language, folder) == CONTENT
