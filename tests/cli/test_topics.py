"""The commands of the groups `topics` and `namespaces`."""

from __future__ import annotations

import json

import click
import pytest

from later.cli import policy_options
from later.core.policy import DEFAULT_POLICY, POLICY_FIELDS, format_policy
from tests.cases import each_case
from tests.cli.api_stub import ApiStub, Capture, Reply, exit_code_of, problem_reply

COUNTS = {"delay": 2, "unack": 0, "error": 1, "dead": 0, "due": 1, "oldest_lateness_s": 150.5}
HELD = {**COUNTS, "held": "rate", "paused": False, "rate": 2.5, "concurrency": None, "deliver": "push"}
APPLIED = {name: {"value": value, "level": "daemon"} for name, value in format_policy(DEFAULT_POLICY).items()}
APPLIED["max_delay"] = {"value": 900, "level": "namespace"}


def topics_page(*topics: str, cursor: str | None = None) -> Reply:
    return Reply(200, {"topics": [{"topic": topic, **COUNTS} for topic in topics], "cursor": cursor})


def test_topics_are_listed_page_by_page(api: ApiStub, capsys: Capture) -> None:
    api.replies = [topics_page("order", "ä\x1b", cursor="x/1"), topics_page("shop/mail")]
    assert exit_code_of("topics", "list", "--namespace", "a/ü") == 0
    assert capsys.readouterr().out.splitlines() == [
        "topic      delay  unack  error  dead  due  oldest late by  held by",
        "order          2      0      1     0    1           3 min        -",
        "ä\\x1b          2      0      1     0    1           3 min        -",
        "shop/mail      2      0      1     0    1           3 min        -",
    ]
    assert api.calls == [
        ("GET", "/topics?limit=1000&namespace=a%2F%C3%BC"),
        ("GET", "/topics?limit=1000&namespace=a%2F%C3%BC&cursor=x%2F1"),
    ]


def test_a_paused_topic_is_told_and_an_older_daemon_tells_nothing(api: ApiStub, capsys: Capture) -> None:
    paused = {**HELD, "paused": True, "held": "no"}
    topics = [{"topic": "a", **paused}, {"topic": "b", **HELD}, {"topic": "c", **COUNTS}]
    api.replies = [Reply(200, {"topics": topics, "cursor": None})]
    assert exit_code_of("topics", "list") == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]] == ["pause", "rate", "-"]


def test_no_more_topics_are_listed_than_the_limit(api: ApiStub, capsys: Capture) -> None:
    api.replies = [topics_page("a", "b", cursor="b"), topics_page("a", "b"), topics_page("a", "b", cursor="b")]
    assert exit_code_of("topics", "list", "--limit", "1") == 0
    assert capsys.readouterr().out.splitlines()[2:] == ["… and more"]
    assert exit_code_of("topics", "list", "--limit", "2") == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert exit_code_of("topics", "list", "--limit", "2", "--json") == 0
    assert [json.loads(line)["topic"] for line in capsys.readouterr().out.splitlines()] == ["a", "b"]
    assert len(api.requests) == 3


def test_a_topic_is_shown_with_the_fields_that_it_sets(api: ApiStub, capsys: Capture) -> None:
    topic = {"topic": "shop/order", "namespace": "shop", **HELD, "policy": format_policy(DEFAULT_POLICY)}
    own = {"max_delay": 0, "retry_base": 0.5, "ttl": 5400, "delays": False, "rate": 2.5, "new_in_2030": [1]}
    api.replies = [Reply(200, topic), Reply(200, own)] * 2
    assert exit_code_of("topics", "show", "shop/order") == 0
    assert capsys.readouterr().out.splitlines() == [
        "topic       delay  unack  error  dead  due  oldest late by  held by",
        "shop/order      2      0      1     0    1           3 min     rate",
        "",
        "field        value",
        "max_delay    0 (no limit)",
        "retry_base   500ms",
        "ttl          90m",
        "delays       off",
        "rate         2.5/s",
        "new_in_2030  [1]",
    ]
    assert exit_code_of("topics", "show", "shop/order", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"topic": "shop/order", "namespace": "shop", **HELD, "set": own}
    assert api.calls == [("GET", "/topics/shop%2Forder"), ("GET", "/topics/shop%2Forder/policy")] * 2


def test_a_topic_is_shown_with_all_fields_that_apply_and_their_levels(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, {"topic": "order", **COUNTS, "policy": {}}), Reply(200, APPLIED)]
    assert exit_code_of("topics", "show", "order", "--applied") == 0
    table = capsys.readouterr().out.partition("\n\n")[2].splitlines()
    assert table[:4] == [
        "field          value         from",
        "default_delay  0s            daemon",
        "max_delay      15m           namespace",
        "delay_mode     honor         daemon",
    ]
    assert [line.split()[0] for line in table[1:]] == list(POLICY_FIELDS)
    assert api.calls[1] == ("GET", "/topics/order/policy?applied=true")


def test_a_namespace_is_shown(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, {}), Reply(200, {"retry": 5}), Reply(200, APPLIED)]
    assert exit_code_of("namespaces", "show", "shop") == 0
    assert exit_code_of("namespaces", "show", "shop", "--json") == 0
    assert exit_code_of("namespaces", "show", "shop", "--json", "--applied") == 0
    unset, own, applied = capsys.readouterr().out.splitlines()
    assert unset == "nothing is set for the namespace shop: all fields are inherited"
    assert json.loads(own) == {"namespace": "shop", "set": {"retry": 5}}
    assert json.loads(applied) == {"namespace": "shop", "applied": APPLIED}


FIELD_VALUES = {
    "default_delay": ("1.5m", 90), "max_delay": ("7d", 604_800), "delay_mode": ("queue", "queue"),
    "delays": ("off", False), "ttl": ("0", 0), "timeout": ("500ms", 0.5), "retry": ("-1", -1), "retry_base": ("15", 15),
    "retry_cap": ("2h", 7200), "retry_jitter": ("0.2", 0.2), "ack": ("status", "status"), "rate": ("50/s", 50),
    "concurrency": ("7", 7), "paused": ("on", True), "ramp": ("0s", 0), "dead_keep": ("30d", 2_592_000),
    "sign": ("origin", "origin"), "deliver": ("pull", "pull"), "callback": ("http://a/", "http://a/"),
    "claim_lease": ("5m", 300), "max_claims": ("5", 5),
    "dead_to": ("failed", "failed"), "dead_ttl": ("14d", 1_209_600), "remember": ("15m", 900),
    "on_dead": ("dead", "dead"), "on_done": ("done", "done"),
    "durability": ("replica-disk", "replica-disk"),
}  # fmt: skip


def flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def test_set_sends_each_field_in_the_units_of_the_api(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, {"ttl": 0})]
    assert list(FIELD_VALUES) == list(POLICY_FIELDS)
    assert (
        exit_code_of("topics", "set", "a", *(word for f, (text, _) in FIELD_VALUES.items() for word in (flag(f), text)))
        == 0
    )
    assert api.calls == [("PATCH", "/topics/a/policy")]
    assert api.requests[0].json == {field: sent for field, (_, sent) in FIELD_VALUES.items()}
    assert capsys.readouterr().out.splitlines() == ["field  value", "ttl    0 (no limit)"]


def test_a_warning_about_the_policy_is_no_field_of_it(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, {"dead_to": "failed", "warning": "Tasks of a have no callback."})] * 2
    assert exit_code_of("topics", "set", "a", "--dead-to", "failed") == 0
    assert capsys.readouterr() == (
        "field    value\ndead_to  failed\n",
        "later: warning: Tasks of a have no callback.\n",
    )
    assert exit_code_of("topics", "set", "a", "--dead-to", "", "--json") == 0
    assert api.requests[1].json == {"dead_to": ""}
    assert json.loads(capsys.readouterr().out) == {"topic": "a", "set": {"dead_to": "failed"}}


def test_set_sends_only_the_fields_that_are_given(
    api: ApiStub, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("LATER_TIMEOUT", "20s")
    api.replies = [Reply(200, {"delays": False})]
    assert exit_code_of("namespaces", "set", "shop", "--delays", "off", "--json") == 0
    assert [(request.method, request.path, request.json) for request in api.requests] == [
        ("PATCH", "/namespaces/shop/policy", {"delays": False})
    ]
    assert json.loads(capsys.readouterr().out) == {"namespace": "shop", "set": {"delays": False}}


@pytest.mark.parametrize("group", ["topics", "namespaces"])
def test_unset_removes_the_fields_named_or_the_whole_policy(group: str, api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, {"retry": 5}), Reply(200, {})]
    assert exit_code_of(group, "unset", "x", "--max-delay", "--ack", "--json") == 0
    assert exit_code_of(group, "unset", "x") == 0
    partial, whole = api.requests
    assert (partial.method, partial.path, partial.json) == (
        "PATCH",
        f"/{group}/x/policy",
        {"max_delay": None, "ack": None},
    )
    assert (whole.method, whole.path, whole.body) == ("DELETE", f"/{group}/x/policy", b"")
    out = capsys.readouterr().out.splitlines()
    assert json.loads(out[0]) == {group.removesuffix("s"): "x", "set": {"retry": 5}}
    assert out[1] == f"nothing is set for the {group.removesuffix('s')} x: all fields are inherited"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("shop/order", "shop%2Forder"),
        ("a b?c#d%2F", "a%20b%3Fc%23d%252F"),
        ("ü", "%C3%BC"),
        ("\udcff", "%FF"),
        ("x\ny", "x%0Ay"),
    ],
)
def test_a_name_is_percent_encoded(name: str, path: str, api: ApiStub) -> None:
    api.replies = [Reply(200, {})]
    assert exit_code_of("topics", "unset", name) == 0
    assert api.calls == [("DELETE", f"/topics/{path}/policy")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # Before click 8.2, this is no error: it prints the help.
        *([(["topics"], "Usage: later topics")] if hasattr(click.exceptions, "NoArgsIsHelpError") else []),
        (["topics", "show"], "Missing argument 'TOPIC'."),
        (["topics", "set", "order"], "Nothing to set: give at least one field, as in --max-delay 7d."),
        (["namespaces", "set", "shop", "--json"], "Nothing to set"),
        (["topics", "set", "order", "--max-delay", "soon"], "'--max-delay': soon: expected a duration, like 15, 500ms"),
        (["topics", "set", "order", "--delays", "true"], "'--delays': true: expected on or off"),
        (["topics", "set", "order", "--ack", "yes"], "'--ack': yes: expected auto, code or status"),
        (["topics", "set", "order", "--retry", "1.5"], "'--retry': 1.5: expected an integer"),
        (["topics", "set", "order", "--rate", "nan"], "'--rate': nan: expected a number, like 50, 0.5 or 50/s"),
        (["topics", "set", "order", "--rate", "50/min"], "'--rate': 50/min: expected a number, like"),
        (["topics", "unset", "order", "--max-delay", "7d"], "Got unexpected extra argument (7d)"),
        (["topics", "list", "--limit", "0"], "'--limit': 0 is not in the range 1<=x<=1000000000."),
    ],
)
def test_wrong_usage_of_topics(arguments: list[str], message: str, api: ApiStub, capsys: Capture) -> None:
    assert exit_code_of(*arguments) == 2
    assert message in capsys.readouterr().err
    assert api.requests == []


def test_a_wrong_value_is_refused_in_the_words_of_the_daemon(api: ApiStub, capsys: Capture) -> None:
    api.replies = [problem_reply(400, "timeout: expected a number of seconds from 1 to 120, got 500")]
    assert exit_code_of("topics", "set", "order", "--timeout", "500s") == 1
    assert capsys.readouterr() == ("", "later: timeout: expected a number of seconds from 1 to 120, got 500\n")


@pytest.mark.parametrize("arguments", [("topics", "list"), ("topics", "show", "a"), ("topics", "unset", "a")])
def test_topics_of_another_server_are_reported(arguments: tuple[str, ...], api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, [])]
    assert exit_code_of(*arguments) == 1
    assert capsys.readouterr() == (
        "",
        "later: expected a JSON object as the answer, got something else: is this the URL of later?\n",
    )


@each_case(
    ("seconds", "shown"),
    [(0, "0s"), (0.5, "500ms"), (1.5, "1500ms"), (90, "90s"), (900, "15m"), (5400, "90m"), (7200, "2h"),
     (604_800, "7d"), (3_155_760_000, "36525d")],
)  # fmt: skip
def test_a_duration_is_shown_as_the_option_takes_it(seconds: float, shown: str) -> None:
    assert policy_options.format_field("timeout", seconds) == shown


@pytest.mark.parametrize("paused", [True, False])
def test_a_topic_is_paused_and_resumed(paused: bool, api: ApiStub, capsys: Capture) -> None:
    command = "pause" if paused else "resume"
    api.replies = [Reply(200, {"topic": "shop/order", "paused": paused})] * 2
    assert exit_code_of("topics", command, "shop/order") == 0
    assert exit_code_of("topics", command, "shop/order", "--json") == 0
    text, as_json = capsys.readouterr().out.splitlines()
    assert text == f"the topic shop/order is {'paused' if paused else 'not paused'}"
    assert json.loads(as_json) == {"topic": "shop/order", "paused": paused}
    assert api.calls == [("POST", f"/topics/shop%2Forder/{command}")] * 2
