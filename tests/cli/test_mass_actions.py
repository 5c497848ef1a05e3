"""The commands that purge or redrive many tasks."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from tests.cli.api_stub import NOW_S, ApiStub, Capture, Reply, exit_code_of, problem_reply


class TerminalInput(io.StringIO):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


def type_answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", TerminalInput(text))


COUNTS = {"delay": 1000, "error": 4, "dead": 200}


def count_reply(**counts: int) -> Reply:
    """Return the answer to a dry run."""
    return Reply(200, {"dry_run": True, "topic": "order", "purged": sum(counts.values()), "states": counts})


COUNT_REPLY = count_reply(**COUNTS)
PURGE_TOPIC = ("topics", "purge", "order")
PURGE_DEAD = ("dead", "purge", "--topic", "order")
REDRIVE = ("dead", "redrive", "--topic", "order")


@pytest.mark.parametrize(
    ("command", "question"),
    [
        (PURGE_TOPIC, "purge 1,204 tasks of the topic order (delay 1,000, error 4, dead 200)? [y/N]: "),
        ((*PURGE_TOPIC, "--state", "dead", "--state", "delay"),
         "purge 1,200 tasks of the topic order (delay 1,000, dead 200)? [y/N]: "),
        ((*PURGE_TOPIC, "--state", "delay"), "purge 1,000 tasks of the topic order (delay 1,000)? [y/N]: "),
        (PURGE_DEAD, "purge 200 dead tasks of the topic order? [y/N]: "),
        (REDRIVE, "redrive 200 dead tasks of the topic order? [y/N]: "),
        ((*REDRIVE, "--rate", "0.5"), "redrive 200 dead tasks of the topic order, 0.5 a second, for 7 min? [y/N]: "),
    ],
)  # fmt: skip
@pytest.mark.parametrize("answer", ["n\n", "\n"])
def test_a_mass_action_asks_for_confirmation_and_no_is_the_default(
    command: tuple[str, ...], question: str, answer: str, api: ApiStub, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_answer(monkeypatch, answer)
    api.replies = [COUNT_REPLY]
    assert exit_code_of(*command) == 1
    done = "redriven" if "redrive" in command else "purged"
    out, err = capsys.readouterr()
    assert out.strip(" ") == ""  # click before 8.4 prints the question's last space there
    assert err.replace("]:later", "]: later") == f"{question}later: nothing was {done}\n"
    assert [request.json["dry_run"] for request in api.requests] == [True]


@pytest.mark.parametrize("command", [PURGE_TOPIC, PURGE_DEAD, REDRIVE])
def test_without_an_answer_nothing_is_done(
    command: tuple[str, ...], api: ApiStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_answer(monkeypatch, "")
    api.replies = [COUNT_REPLY]
    assert exit_code_of(*command) == 130
    assert [request.json["dry_run"] for request in api.requests] == [True]


@pytest.mark.parametrize(
    ("command", "path", "sent"),
    [
        (PURGE_TOPIC, "/topics/order/purge", {"states": ["delay", "error", "dead"]}),
        ((*PURGE_TOPIC, "--state", "error"), "/topics/order/purge", {"states": ["error"]}),
        (PURGE_DEAD, "/topics/order/purge", {"states": ["dead"], "died_before": NOW_S}),
        (REDRIVE, "/redrive", {"topic": "order", "died_before": NOW_S}),
        ((*REDRIVE, "--rate", "20/s"), "/redrive", {"topic": "order", "died_before": NOW_S, "rate": 20}),
    ],
)
def test_after_yes_the_action_is_carried_out(
    command: tuple[str, ...],
    path: str,
    sent: dict[str, Any],
    now: float,
    api: ApiStub,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = "redriven" if "redrive" in command else "purged"
    type_answer(monkeypatch, "y\n")
    api.replies = [COUNT_REPLY, Reply(200, {done: 1})]
    assert exit_code_of(*command) == 0
    assert (api.requests[0].path, api.requests[0].json) == (path, {**sent, "dry_run": True})
    assert capsys.readouterr().out.strip(" ") == f"1 task {done}\n"
    assert (api.requests[1].path, api.requests[1].json) == (path, {**sent, "limit": 200 if "rate" in sent else 5000})


@pytest.mark.parametrize("command", [PURGE_TOPIC, PURGE_DEAD, REDRIVE])
def test_without_a_terminal_an_action_needs_yes(command: tuple[str, ...], api: ApiStub, capsys: Capture) -> None:
    assert exit_code_of(*command) == 2
    verb = "redrive" if "redrive" in command else "purge"
    assert capsys.readouterr().err.endswith(
        f"\nError: No terminal to ask on: use --yes to {verb} without asking, or --dry-run to count the tasks.\n"
    )
    assert api.requests == []
    api.replies = [Reply(200, {"redriven": 0, "purged": 0})]
    assert exit_code_of(*command, "--yes") == 0
    assert [request.method for request in api.requests] == ["POST"]


@pytest.mark.parametrize("command", [PURGE_TOPIC, PURGE_DEAD, REDRIVE])
def test_without_tasks_no_confirmation_is_asked(
    command: tuple[str, ...], api: ApiStub, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_answer(monkeypatch, "y\n")
    api.replies = [count_reply(delay=0, error=0, dead=0)]
    assert exit_code_of(*command) == 0
    assert capsys.readouterr() == (f"0 tasks {'redriven' if 'redrive' in command else 'purged'}\n", "")


def test_a_dry_run_prints_the_count_and_does_nothing(now: float, api: ApiStub, capsys: Capture) -> None:
    api.replies = [COUNT_REPLY] * 3
    assert exit_code_of(*PURGE_TOPIC, "--dry-run", "--yes") == 0
    assert exit_code_of(*PURGE_DEAD, "--dry-run") == 0
    assert exit_code_of(*REDRIVE, "--dry-run", "--json") == 0
    topic, dead, as_json = capsys.readouterr().out.splitlines()
    assert topic == "1,204 tasks of the topic order (delay 1,000, error 4, dead 200)"
    assert dead == "200 dead tasks of the topic order"
    assert json.loads(as_json) == {"topic": "order", "tasks": 200, "states": {"dead": 200}}
    assert [request.json for request in api.requests] == [
        {"states": ["delay", "error", "dead"], "dry_run": True},
        {"states": ["dead"], "died_before": NOW_S, "dry_run": True},
        {"topic": "order", "died_before": NOW_S, "dry_run": True},
    ]


def test_filtered_dead_tasks_are_counted_by_the_api(now: float, api: ApiStub, capsys: Capture) -> None:
    first = {"dry_run": True, "topic": "order", "redriven": 1, "states": {"dead": 1}, "more": True, "cursor": "c"}
    api.replies = [Reply(200, first), count_reply(dead=1)]
    filters = ("--reason", "exhausted", "--died-after", "2h", "--died-before", "2027-01-15T08:00:00Z")
    assert exit_code_of(*REDRIVE, *filters, "--dry-run") == 0
    assert capsys.readouterr().out == (
        "2 dead tasks of the topic order (reason exhausted, died after 2027-01-15T06:00:00Z, "
        "died before 2027-01-15T08:00:00Z)\n"
    )
    asked = {
        "topic": "order", "reason": "exhausted", "died_after": NOW_S - 7200, "died_before": 1_800_000_000,
        "dry_run": True,
    }  # fmt: skip
    assert [request.json for request in api.requests] == [asked, {**asked, "cursor": "c"}]


def test_a_cursor_continues_an_action_even_if_a_chunk_moved_nothing(api: ApiStub, capsys: Capture) -> None:
    api.replies = [
        Reply(200, {"redriven": 0, "more": True, "cursor": "c"}),
        Reply(200, {"redriven": 3, "more": True, "cursor": "d"}),
        Reply(200, {"redriven": 1}),
    ]
    assert exit_code_of(*REDRIVE, "--reason", "gone", "--yes") == 0
    assert capsys.readouterr().out == "4 tasks redriven\n"
    assert [request.json.get("cursor") for request in api.requests] == [None, "c", "d"]


@pytest.mark.parametrize(("died_before", "sent"), [("1h", NOW_S - 3600), ("2028-01-01T00:00:00Z", NOW_S)])
def test_filters_are_sent_and_tasks_that_die_later_are_left_out(
    died_before: str, sent: float, now: float, api: ApiStub
) -> None:
    api.replies = [Reply(200, {"redriven": 0}), Reply(200, {"purged": 0})]
    filters = ("--reason", "gone", "--died-after", "2h", "--died-before", died_before, "--yes")
    assert (exit_code_of(*REDRIVE, *filters), exit_code_of(*PURGE_DEAD, *filters)) == (0, 0)
    expected = {"died_after": NOW_S - 7200, "died_before": sent, "reason": "gone", "limit": 5000}
    assert [request.json for request in api.requests] == [
        {"topic": "order", **expected},
        {"states": ["dead"], **expected},
    ]


def test_chunks_with_the_same_filters_are_sent_until_no_task_is_left(api: ApiStub, capsys: Capture) -> None:
    more = Reply(200, {"redriven": 5000, "more": True})
    api.replies = [more, more, Reply(200, {"redriven": 17})]
    assert exit_code_of(*REDRIVE, "--yes") == 0
    assert capsys.readouterr() == ("10,017 tasks redriven\n", "")
    first, *others = [request.json for request in api.requests]
    assert others == [first] * 2


def test_chunks_are_summed_up_in_a_json_object(api: ApiStub, capsys: Capture) -> None:
    api.replies = [Reply(200, {"purged": 5000, "more": True}), Reply(200, {"purged": 1})]
    assert exit_code_of(*PURGE_TOPIC, "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"purged": 5001, "exact": True}


def test_an_answer_that_promises_more_but_changed_nothing_ends_the_action(api: ApiStub) -> None:
    api.replies = [Reply(200, {"purged": 0, "more": True})]
    assert exit_code_of(*PURGE_TOPIC, "--yes") == 0
    assert len(api.requests) == 1


def test_a_chunk_whose_answer_was_lost_is_sent_again(api: ApiStub, pauses: list[float], capsys: Capture) -> None:
    api.replies = [
        Reply(200, {"purged": 5000, "more": True}),
        problem_reply(503, "the store is away", "7"),
        Reply(200, {"purged": 5000}, lost=True),
        Reply(200, {"purged": 204}),
    ]
    assert exit_code_of(*PURGE_TOPIC, "--yes") == 0
    out, err = capsys.readouterr()
    assert out == "at least 5,204 tasks purged: requests without an answer may have changed more\n"
    assert err.splitlines()[0] == "later: the store is away; trying again in 7 s"
    assert pauses == [7, 2]
    assert len({request.body for request in api.requests}) == 1


def test_a_chunk_that_keeps_failing_ends_the_action_and_says_how_to_continue(
    api: ApiStub, pauses: list[float], capsys: Capture
) -> None:
    api.replies = [Reply(200, {"purged": 5000, "more": True}), problem_reply(503, "away"), problem_reply(503, "away")]
    assert exit_code_of(*PURGE_TOPIC, "--yes", "--retries", "1") == 1
    out, err = capsys.readouterr()
    assert out.startswith("at least 5,000 tasks purged")
    assert err.splitlines()[1:] == ["later: run the same command again to continue", "later: away (tried 2 times)"]
    assert pauses == [1]


@pytest.mark.parametrize("status", [400, 404, 405])
def test_a_refused_chunk_is_not_sent_again(status: int, api: ApiStub, pauses: list[float], capsys: Capture) -> None:
    api.replies = [problem_reply(status, "no")]
    assert exit_code_of(*REDRIVE, "--yes") == 1
    assert capsys.readouterr() == ("", "later: no\n")
    assert pauses == []


def test_an_interrupted_action_prints_what_was_done(
    api: ApiStub, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("later.cli.commands.mass_actions.time.sleep", stop)
    api.replies = [Reply(200, {"redriven": 200, "more": True})]
    assert exit_code_of(*REDRIVE, "--yes", "--rate", "20") == 130
    assert capsys.readouterr() == ("200 tasks redriven\n", "later: run the same command again to continue\n\n")


@pytest.mark.parametrize(
    ("rate", "limit", "pause"), [("20", 200, 10), ("0.01", 1, 100), ("600", 5000, 8.333), ("1e6", 5000, 0.005)]
)
def test_a_rate_is_kept_over_all_chunks(rate: str, limit: int, pause: float, api: ApiStub, pauses: list[float]) -> None:
    api.replies = [Reply(200, {"redriven": limit, "more": True}), Reply(200, {"redriven": 1})]
    assert exit_code_of(*REDRIVE, "--yes", "--rate", rate) == 0
    assert [request.json["limit"] for request in api.requests] == [limit] * 2
    assert pauses == [pytest.approx(pause, abs=0.5)]


def test_with_a_rate_a_chunk_whose_answer_was_lost_is_sent_again_after_its_duration(
    api: ApiStub, pauses: list[float]
) -> None:
    api.replies = [Reply(200, {"redriven": 200}, lost=True), Reply(200, {"redriven": 1})]
    assert exit_code_of(*REDRIVE, "--yes", "--rate", "20") == 0
    assert pauses == [10]


def test_a_progress_bar_follows_the_chunks_on_a_terminal(
    api: ApiStub, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    type_answer(monkeypatch, "y\n")
    api.replies = [COUNT_REPLY, Reply(200, {"purged": 1000, "more": True}), Reply(200, {"purged": 204})]
    assert exit_code_of(*PURGE_TOPIC) == 0
    out, err = capsys.readouterr()
    assert out == "1,204 tasks purged\n"
    assert "/1204" in err
