"""The commands of the group `keys`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from redis import Redis

from later.cli.store_access import this_user
from later.core.api_keys import has_valid_check
from tests.cases import each_case
from tests.cli.api_stub import Capture, exit_code_of
from tests.servers import shared_server


@pytest.fixture(autouse=True)
def store_url(monkeypatch: pytest.MonkeyPatch) -> None:
    with Redis.from_url(shared_server()) as client:
        client.flushall()
    monkeypatch.setenv("LATER_REDIS", shared_server())


def make(capsys: Capture, *arguments: str) -> str:
    assert exit_code_of("keys", *arguments) == 0
    return capsys.readouterr().out.removesuffix("\n")


def listed(capsys: Capture) -> list[dict[str, object]]:
    assert exit_code_of("keys", "list", "--json") == 0
    return list(json.loads(capsys.readouterr().out)["keys"])


def test_a_key_is_printed_alone_and_kept_nowhere(capsys: Capture) -> None:
    text = make(capsys, "create", "shop", "--scopes", "read,create", "--namespace", "shop", "--expires", "90d")
    assert re.fullmatch("later_[0-9A-Za-z]{8}_[0-9A-Za-z]{38}", text)
    (view,) = listed(capsys)
    assert (view["id"], view["name"], view["namespace"], view["rate"]) == (text[6:14], "shop", "shop", None)
    assert (view["scopes"], view["ended"], view["last_used_at"]) == (["create", "read"], False, None)
    with Redis.from_url(shared_server()) as client:
        assert text[15:].encode() not in b"".join(client.dump(key) or b"" for key in client.scan_iter())


def test_the_start_s_hint_can_be_typed_as_it_is(capsys: Capture) -> None:
    make(capsys, "create", "--scopes", "admin")
    assert [view["scopes"] for view in listed(capsys)] == [["admin"]]


def test_all_are_six_scopes(capsys: Capture) -> None:
    made = json.loads(make(capsys, "create", "--scopes", "all", "--rate", "2.5", "--json"))
    assert made["scopes"] == ["create", "read", "edit", "admin", "claim", "metrics"]
    assert has_valid_check(made["key"])
    assert made["rate"] == 2.5


@each_case(
    "words", ["keys list", "keys show 0aB9zZ10", "keys revoke 0aB9zZ10", "keys rotate 0aB9zZ10", "audit", "status",
              "doctor", "secrets show"],
)  # fmt: skip
def test_a_mistyped_data_directory_is_reported_and_not_made(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str
) -> None:
    monkeypatch.delenv("LATER_REDIS", raising=False)
    data = tmp_path / "later-dta"
    assert exit_code_of(*words.split(), "--data", str(data)) == 1
    assert (
        capsys.readouterr().err == f"later: there is no store in {data}: --data names the directory of a `later up`\n"
    )
    assert not data.exists()


def test_a_rotated_key_has_a_successor_and_an_end(capsys: Capture) -> None:
    old = make(capsys, "create", "a", "--scopes", "read")
    new = make(capsys, "rotate", old[6:14], "--overlap", "1h")
    views = {view["id"]: view for view in listed(capsys)}
    assert views[new[6:14]]["expires_at"] is None
    assert views[old[6:14]]["expires_at"] is not None
    assert {views[id]["name"] for id in views} == {"a"}


def test_a_key_is_shown_and_revoked_by_its_id_and_by_itself(capsys: Capture) -> None:
    first, second = (make(capsys, "create", "a", "--scopes", "read") for _ in range(2))
    assert "scopes        read\n" in make(capsys, "show", first[6:14]) + "\n"
    assert make(capsys, "revoke", first[6:14]) == f"revoked {first[6:14]}"
    assert make(capsys, "revoke", second) == f"revoked {second[6:14]}"
    assert listed(capsys) == []
    assert exit_code_of("keys", "revoke", second) == 1
    error = capsys.readouterr().err
    assert error == f"later: no key has the id {second[6:14]}: later keys list shows all\n"


def test_what_is_done_to_keys_is_in_the_audit_trail_without_the_keys(capsys: Capture) -> None:
    old = make(capsys, "create", "a", "--scopes", "read", "--namespace", "shop")
    new = make(capsys, "rotate", old[6:14], "--overlap", "1h")
    make(capsys, "revoke", new)
    assert exit_code_of("audit", "--json") == 0
    shown = capsys.readouterr().out
    events = [json.loads(line) for line in shown.splitlines()]
    assert [(event["event"], event["id"], event["outcome"]) for event in events] == [
        ("key made", old[6:14], "done"), ("key rotated", new[6:14], "done"), ("key revoked", new[6:14], "done"),
    ]  # fmt: skip
    assert {(event["key"], event["namespace"], event["peer"]) for event in events} == {(this_user(), "shop", None)}
    assert not any(key[15:] in shown for key in (old, new))


def test_a_table_has_a_row_for_each_key(capsys: Capture) -> None:
    text = make(capsys, "create", "shop", "--scopes", "all", "--namespace", "shop")
    lines = make(capsys, "list").splitlines()
    assert lines[0].split() == ["id", "name", "scopes", "namespace", "created", "expires", "last", "used"]
    assert lines[1].split()[:4] == [text[6:14], "shop", "all", "shop"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "a"),
        ("create", "a", "--scopes", "write"),
        ("create", "a", "--scopes", ""),
        ("create", "a", "--scopes", "read", "--namespace", "a/b"),
        ("create", "a", "--scopes", "read", "--expires", "soon"),
        ("create", "a", "--scopes", "read", "--rate", "fast"),
        ("create", "a\nb", "--scopes", "read"),
    ],
)
def test_a_wrong_value_makes_no_key(arguments: tuple[str, ...], capsys: Capture) -> None:
    assert exit_code_of("keys", *arguments) == 2
    assert listed(capsys) == []


def test_a_root_key_is_made_without_a_store(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATER_REDIS", "redis://127.0.0.1:1")
    assert has_valid_check(make(capsys, "make"))
