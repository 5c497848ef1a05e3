"""API keys, with Zaqar's client: it sends one as the token of Keystone, and needs no Keystone for that."""

from __future__ import annotations

from pathlib import Path

import pytest
from zaqarclient.queues import client
from zaqarclient.queues.v2.queues import Queue
from zaqarclient.transport.errors import ForbiddenError, UnauthorizedError

from tests.system.daemons import kill_orphaned_store, run_up
from tests.system.test_keys import make_key
from tests.zaqar.clients import bodies, claim, open_client, post


def open_queue(url: str, key: str, project: str = "shop") -> Queue:
    """Return the queue `jobs` of a project, for a client with this key."""
    options = {"backend": "keystone", "options": {"os_auth_token": key, "os_project_id": project}}
    return client.Client(url, version=2, conf={"auth_opts": options}).queue("jobs")


def test_a_key_does_what_its_scopes_allow_in_the_project_that_is_its_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATER_PROCESSES", "2")
    data = tmp_path / "data"
    producer, consumer, reader = (
        make_key(data, "--scopes", scopes, "--namespace", "shop") for scopes in ("create", "claim", "read")
    )
    with run_up(tmp_path, data, "--shards", "16") as up:
        post(open_queue(up.url, producer), "x", "y")
        with pytest.raises(ForbiddenError, match=r"Description: this key may create, not claim\."):
            claim(open_queue(up.url, producer))
        with pytest.raises(ForbiddenError, match=r"Description: this key may claim, not create\."):
            post(open_queue(up.url, consumer), "z")
        with pytest.raises(ForbiddenError, match="this key is for the namespace shop"):
            claim(open_queue(up.url, consumer, "other"))
        with pytest.raises(UnauthorizedError, match="Title: Unauthorized"):
            list(open_client(up.url, "shop").queue("jobs").messages())
        assert bodies(open_queue(up.url, reader).messages(echo=True)) == ["x", "y"]
        (message,) = claim(open_queue(up.url, consumer), limit=1)
        message.delete()
        assert bodies(open_queue(up.url, consumer).pop(5)) == ["y"]
        assert open_queue(up.url, reader).stats["messages"]["total"] == 0
    kill_orphaned_store(data)
