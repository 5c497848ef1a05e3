"""The command `move`: its options, what it says, and its progress."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from later.cli.commands import move as command
from later.cli.commands.move import _place, _teller
from later.cli.program import run
from later.cli.progress import task_bar
from later.core.errors import ConfigError, StoreDown
from tests.builders import a_task
from tests.cli.api_stub import Capture
from tests.store.store_meaning import open_prefix, read_meaning
from tests.store_fixture import StoreFixture


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "Missing option '--from'"),
        (("--from", "nowhere"), 2, "--to: expected where the data goes"),
        (("--from", "nowhere", "--to", "x"), 1, "--from nowhere: there is no store"),
        (("--from", "redis://u:secret@h:x/0", "--to", "x"), 2, "expected"),
        (("--from", "http://h/", "--to", "x"), 2, "expected"),
        (("--from", "nowhere", "--to", "x", "--to-shards", "0"), 2, "--to-shards"),
    ],
)
def test_a_wrong_command_is_refused_with_the_reason_and_without_a_password(
    arguments: tuple[str, ...], code: int, says: str, capsys: Capture
) -> None:
    assert run(["move", *arguments]).code == code
    err = capsys.readouterr().err
    assert says in err
    assert "secret" not in err


def test_the_progress_is_told_with_its_rate_and_what_is_left(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    now = 100.0
    monkeypatch.setattr("later.cli.commands.move.time.monotonic", lambda: now)
    with task_bar(None) as bar:
        tell = _teller(bar)
        tell(1000, 9000)
        assert capsys.readouterr().err == ""
        now += 20
        tell(5000, 9000)
    assert capsys.readouterr().err == "later: 5,000 of 9,000 tasks, 200/s, 20 s left\n"


def test_the_place_of_the_data_is_said_without_a_password(tmp_path: Path) -> None:
    assert _place("redis://u:secret@h:1/0", "later") == "redis://***@h:1/0"
    assert _place(str(tmp_path), "other") == f"{tmp_path} (prefix other)"


async def test_a_store_is_moved_to_another_prefix(store: StoreFixture, server_url: str, capsys: Capture) -> None:
    await store.tasks.create([a_task() for _ in range(9)])
    before = await read_meaning(store)
    ends = (server_url, server_url, 7, "later", "other", 10.0)
    assert await command._move(*ends, as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["state"], report["tasks"], report["shards"]) == ("done", 9, 7)
    async with open_prefix(server_url, "other", 7) as target:
        assert await read_meaning(target) == before
    assert await command._move(*ends, as_json=False) == 0
    assert "already; nothing was left to do" in capsys.readouterr().out


async def test_the_shards_of_a_target_that_is_laid_out_stay(
    store: StoreFixture, server_url: str, capsys: Capture
) -> None:
    await store.tasks.create([a_task()])
    async with open_prefix(server_url, "other", 3):
        pass
    with pytest.raises(ConfigError, match="laid out with 3"):
        await command._move(server_url, server_url, 7, "later", "other", 10.0, as_json=False)
    assert await command._move(server_url, server_url, None, "later", "other", 10.0, as_json=False) == 0


async def test_an_address_without_its_scheme_is_no_new_directory(
    store: StoreFixture, server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await store.client.open()
    for target in ("10.0.0.1:6379", "redis:/10.0.0.1"):
        with pytest.raises(ConfigError, match="there is no such directory; expected redis://"):
            await command._move(server_url, target, None, "later", "other", 10.0, as_json=False)
    assert not list(tmp_path.iterdir())


async def test_an_error_names_the_end_that_it_is_about(store: StoreFixture, server_url: str) -> None:
    await store.client.open()
    with pytest.raises(StoreDown, match=r"--to redis://127\.0\.0\.1:1/0: the store cannot be reached"):
        await command._move(server_url, "redis://127.0.0.1:1/0", None, "later", "other", 1.0, as_json=False)
    with pytest.raises(StoreDown, match=r"--from redis://127\.0\.0\.1:1/0: the store cannot be reached"):
        await command._move("redis://127.0.0.1:1/0", server_url, None, "later", "other", 1.0, as_json=False)
