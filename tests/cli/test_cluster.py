"""`later cluster plan`: how shards fall on nodes, and which slots to move."""

from __future__ import annotations

import json

from tests.cases import each_case
from tests.cli.api_stub import Capture, exit_code_of


def test_the_plan_shows_each_node_and_each_slot_to_move(capsys: Capture) -> None:
    assert exit_code_of("cluster", "plan", "--nodes", "3", "--shards", "16") == 0
    assert capsys.readouterr().out.splitlines() == [
        "node  first slot  last slot  shards  then",
        "1              0       5460       8     6",
        "2           5461      10922       4     5",
        "3          10923      16383       4     5",
        "",
        "2 slots to move:",
        "slot  shard  from node  to node",
        "125       6          1        2",
        "249       2          1        3",
    ]


def test_the_plan_as_json_ends_with_as_many_shards_on_each_node(capsys: Capture) -> None:
    assert exit_code_of("cluster", "plan", "--nodes", "12", "--shards", "64", "--prefix", "other", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert sum(node["shards"] for node in printed["nodes"]) == 64
    assert {node["shards_then"] for node in printed["nodes"]} == {5, 6}
    assert [node["first_slot"] for node in printed["nodes"]][:3] == [0, 1365, 2731]
    assert printed["moves"]
    for move in printed["moves"]:
        source = printed["nodes"][move["from"] - 1]
        assert source["first_slot"] <= move["slot"] <= source["last_slot"]


def test_one_node_needs_no_move(capsys: Capture) -> None:
    assert exit_code_of("cluster", "plan", "--nodes", "1", "--shards", "16") == 0
    assert capsys.readouterr().out.endswith("\nno slot needs to move\n")


@each_case("arguments", [["--nodes", "3"], ["--shards", "16"], ["--nodes", "0", "--shards", "16"]])
def test_both_numbers_are_needed(arguments: list[str], capsys: Capture) -> None:
    assert exit_code_of("cluster", "plan", *arguments) == 2
    assert "Usage:" in capsys.readouterr().err
