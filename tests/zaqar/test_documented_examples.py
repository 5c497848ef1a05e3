"""The examples of docs/zaqar.md, run against a daemon: in a shell, and with Zaqar's client."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.test_docs import code_blocks
from tests.zaqar.clients import bodies

if TYPE_CHECKING:
    from tests.system.daemons import Daemon

DOCUMENT = (Path(__file__).parent.parent.parent / "docs" / "zaqar.md").read_text()


def filled_in(example: str, daemon: Daemon, project: str) -> str:
    """Return an example for this daemon and project, with a key for its placeholder."""
    return (
        example.replace("http://127.0.0.1:8080", daemon.url)
        .replace('"shop"', f'"{project}"')
        .replace("X-Project-Id: shop", f"X-Project-Id: {project}")
        .replace("later_…", "later_x")
    )


def test_the_commands_post_claim_and_change(daemon: Daemon, project: str) -> None:
    scripts = [block for block in code_blocks("sh", DOCUMENT) if "curl" in block]
    assert len(scripts) == 2
    answers: list[Any] = []
    for script in scripts:
        done = subprocess.run(
            ["bash", "-ec", filled_in(script.replace("\ncurl", "\necho; curl"), daemon, project)],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        answers += [json.loads(line) for line in done.stdout.splitlines()]
    posted, claimed, metadata = answers
    [message] = claimed["messages"]
    assert posted["resources"] == [message["href"].partition("?")[0]]
    assert (message["body"], message["ttl"]) == ({"order": 7}, 3600)
    assert (metadata["team"], metadata["_default_message_delay"]) == ("billing", 60)


def test_the_client_is_pointed_here_without_a_key_and_with_one(
    daemon: Daemon, project: str, capsys: pytest.CaptureFixture[str]
) -> None:
    without_key, with_key = code_blocks("python", DOCUMENT)
    names: dict[str, Any] = {}
    exec(filled_in(without_key, daemon, project), names)
    assert capsys.readouterr().out == "{'order': 7}\n"
    assert bodies(names["queue"].messages(echo=True, include_claimed=True)) == []
    exec(filled_in(with_key, daemon, project), names)  # this daemon asks for none, and looks at none
    assert names["zaqar"].health()["storage_reachable"] is True
