"""What the documents say is so: names exist, examples run, links lead somewhere."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import click
import pytest

from later.cli.groups import load_command
from later.cli.main import later
from later.config import OPTIONS
from later.core.policy import DEFAULT, FIELDS, Ack, format_policy
from later.core.reply import Reply, parse_reply
from later.core.retry import Backoff, OutcomeKind
from later.metrics import Metrics
from later.store.url import PASSWORD, PASSWORD_FILE
from tests.builders import NOW, a_task
from tests.receivers import Caller, a_sender

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTS += [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "deploy").glob("*.md"))]
RECEIVERS = (ROOT / "docs" / "receivers.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
ALARMS = ROOT / "deploy" / "alarms.yaml"
TOPICS = (ROOT / "docs" / "topics.md").read_text()

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(language: str, text: str) -> list[str]:
    """The document's fenced blocks in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def section(heading: str, text: str) -> str:
    """What stands below a heading, up to the next one."""
    return re.split(r"^#+ ", text.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(table: str) -> list[str]:
    """Everything in backticks in the first column of a table."""
    rows = re.findall(r"^\| ([^|]*`[^|]*) \|", table, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


# Metrics


def exported() -> dict[str, str]:
    """Every metric's name, as it is scraped, and its type."""
    collected = Metrics().registry.collect()
    return {metric.name + ("_total" if metric.type == "counter" else ""): metric.type for metric in collected}


def test_every_exported_metric_is_documented_with_its_type_and_no_other() -> None:
    assert dict(re.findall(r"^\| `(later_\w+)` \| (\w+)", OPERATIONS, re.MULTILINE)) == exported()


@pytest.mark.parametrize("document", [*DOCUMENTS, ALARMS], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_metric_that_is_named_exists(document: Path) -> None:
    histograms = {name for name, kind in exported().items() if kind == "histogram"}
    parts = {name + part for name in histograms for part in ("_bucket", "_count", "_sum")}
    assert set(re.findall(r"\blater_\w+", document.read_text())) <= exported().keys() | parts


def test_every_alarm_is_explained() -> None:
    alarms = re.findall(r"alert: (\w+)\n +expr: ", ALARMS.read_text())
    assert alarms
    assert alarms == re.findall(r"^\*\*(Later\w+)\.\*\*", OPERATIONS, re.MULTILINE)


# The log


def logged() -> dict[str, str]:
    """Every event in the code and its level; the graver one where it has two."""
    code = "".join(path.read_text() for path in sorted((ROOT / "later").rglob("*.py")))
    events = re.findall(r'\blog\.(debug|info|warning|error|exception)\(\s*"([^"]+)"', code)
    levels = ("debug", "info", "warning", "error", "exception")
    return {event: level for level, event in sorted(events, key=lambda found: levels.index(found[0]))}


def test_every_event_that_is_documented_is_logged() -> None:
    events = first_cells(section("The log", OPERATIONS))
    assert events
    assert [event for event in events if not any(found.startswith(event) for found in logged())] == []


def test_every_event_above_debug_is_documented() -> None:
    events = tuple(first_cells(section("The log", OPERATIONS)))
    assert [e for e, level in logged().items() if level != "debug" and not e.startswith(events)] == []


# Options

OF_OTHER_PROGRAMS = {
    *("--require-hashes", "--no-deps", "--no-build-isolation", "--now"),  # pip, systemctl
    *("--name", "--stop-timeout", "--no-healthcheck"),  # docker
    *("--fix",),  # valkey-check-aof
    *("--pid", "--duration", "--output", "--format", "--rate"),  # py-spy
    *("--py-files", "--host", "--port", "--cores", "--memory"),  # spark-submit, spark-class
    *("--pipe",),  # redis-cli
}


def commands() -> dict[str, click.Command]:
    """Every command by its words: `up`, `topics list`."""
    found = {name: load_command(lazy) for name, lazy in later.lazy_commands.items()}
    for name, group in [*found.items()]:
        below = group.commands if isinstance(group, click.Group) else {}
        found |= {f"{name} {word}": command for word, command in below.items()}
    return found


COMMANDS = commands()


def options_of(command: str) -> set[str]:
    return {option for parameter in COMMANDS[command].params for option in parameter.opts} | {"--help"}


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", text))


@every_document
def test_every_option_that_is_named_exists(document: Path) -> None:
    of_later = {option for command in COMMANDS for option in options_of(command)}
    scripts = [path.read_text() for folder in ("scripts", "deploy") for path in (ROOT / folder).rglob("*.py")]
    of_scripts = set(re.findall(r'"(--[a-z-]+)"', "".join(scripts)))
    assert options_in(document.read_text()) <= of_later | of_scripts | OF_OTHER_PROGRAMS


@every_document
def test_every_command_line_has_options_of_its_command(document: Path) -> None:
    for line in re.findall(r"\blater (\w+(?: [^`\n#;]*)?)(?=[`\n#;])", document.read_text()):
        group, *below = line.split()
        command = " ".join([group, *below[:1]]) if isinstance(COMMANDS.get(group), click.Group) else group
        if command in COMMANDS:
            assert options_in(line) <= options_of(command)


@every_document
def test_every_environment_variable_that_is_named_exists(document: Path) -> None:
    assert set(re.findall(r"\bLATER_[A-Z_]+\b", document.read_text())) <= {PASSWORD, PASSWORD_FILE} | {
        option.variable for option in OPTIONS
    }


def test_options_to_know_have_the_defaults_that_are_documented() -> None:
    rows = re.findall(r"^\| `--([a-z-]+)` \| ([^|]+) \|", section("Options to know", OPERATIONS), re.MULTILINE)
    defaults = {option.name: option.shown_default or option.default or "" for option in OPTIONS}
    in_words = {"7d": "7 days", "0s": "no limit"}
    told = {name: text.replace(" ", "") for name, text in rows}
    assert told == {n: in_words.get(defaults[n], defaults[n]).replace(" ", "") for n, _ in rows}


# Policies


def test_every_field_of_a_policy_is_documented_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]*\| `?(\w+)[^|]*\|", section("The fields", TOPICS), re.MULTILINE)
    defaults = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in format_policy(DEFAULT).items()
    }
    assert dict(rows) == defaults


LIMITS = {"rate": "topic-rate", "concurrency": "topic-concurrency", "ramp": "ramp"}
"""Fields whose options have a table of their own, for all but one have names of their own."""


def test_every_field_has_the_option_that_is_documented() -> None:
    table = section("The daemon's options", TOPICS)
    rows = re.findall(r"^\| `--([a-z-]+)` \| `(\w+)` \| ([^|:]+?)(?::[^|]*)? \|$", table, re.MULTILINE)
    defaults = {option.name: option.default for option in OPTIONS if "up" in option.commands}
    assert rows == [
        (name, field, defaults[name])
        for field in FIELDS
        for name in [field.replace("_", "-")]
        if field not in LIMITS and field != "paused"
    ]
    rows = re.findall(r"^\| `--([a-z-]+)` \| ([^|:]+?)(?::[^|]*)? \| `(\w+)` \|$", table, re.MULTILINE)
    assert rows == [(name, defaults[name], field) for field, name in LIMITS.items()]


# Code, JSON and links


@every_document
def test_what_python_examples_import_from_later_exists(document: Path) -> None:
    for example in blocks("python", document.read_text()):
        for node in ast.walk(ast.parse(example)):
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("later."):
                module = importlib.import_module(node.module)
                assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@every_document
def test_json_in_examples_can_be_read(document: Path) -> None:
    text = document.read_text()
    for example in [*blocks("json", text), *re.findall(r"-d '(.*?)'", text, re.DOTALL)]:
        json.loads(example)


@every_document
def test_every_link_leads_somewhere(document: Path) -> None:
    for file, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", document.read_text()):
        target = (document.parent / file) if file else document
        assert target.exists(), f"there is no {target}"
        assert not anchor or anchor in anchors(target)


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


# Receivers


def test_a_task_goes_on_failing_for_as_long_as_documented() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([\d,]+) s", RECEIVERS, re.MULTILINE)
    assert rows
    for retry, attempts, seconds in rows:
        pauses = [Backoff().pause(failures, 0) for failures in range(1, int(retry) + 1)]
        assert (int(attempts), int(seconds.replace(",", ""))) == (int(retry) + 1, sum(pauses) / 1000)


def test_the_answers_in_the_trap_fail_and_the_way_out_is_done() -> None:
    trap = section("The trap: a `code` of your own", RECEIVERS)
    wrong, (right,) = re.findall(r"`(\{.*?\})`", trap), blocks("json", trap)
    assert wrong
    assert {judged(answer) for answer in wrong} == {OutcomeKind.FAILED}
    assert judged(right) is OutcomeKind.DONE


def judged(body: str) -> OutcomeKind:
    return parse_reply(Reply(status=200, body=body.encode()), NOW, Ack.AUTO).kind


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The Python receiver of the document, as a module, with a database of its own."""
    file = tmp_path / "receiver.py"
    (code,) = blocks("python", RECEIVERS)
    file.write_text(code)
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("receiver", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.prepare()
    return module


@contextmanager
def receiving(example: ModuleType) -> Iterator[str]:
    """The example's server, on any port that is free: its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), example.Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def url(example: ModuleType) -> Iterator[str]:
    with receiving(example) as url:
        yield url


@pytest.fixture
async def sender() -> AsyncIterator[Caller]:
    async with a_sender(timeout_ms=15_000) as sender:
        yield sender


def orders() -> list[str]:
    """The work that the example has done."""
    with closing(sqlite3.connect("receiver.db")) as database:
        return [content for (content,) in database.execute("SELECT content FROM orders")]


async def test_the_example_does_the_work_once(url: str, sender: Caller) -> None:
    task = a_task(callback=url)
    first, again = await sender.send(task, 1, NOW), await sender.send(task, 2, NOW)
    assert (first.kind, again.kind) == (OutcomeKind.DONE, OutcomeKind.DONE)
    assert orders() == ["hello"]


async def test_the_example_does_the_work_once_when_calls_overlap(url: str, sender: Caller) -> None:
    task = a_task(callback=url)
    outcomes = await asyncio.gather(*(sender.send(task, 1, NOW) for _ in range(4)))
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.DONE}
    assert orders() == ["hello"]


async def test_the_example_says_never_to_a_topic_that_it_does_not_know(url: str, sender: Caller) -> None:
    assert (await sender.send(a_task(callback=url, topic="mail"), 1, NOW)).kind is OutcomeKind.GONE


async def test_the_example_says_not_now_while_its_database_is_locked(
    url: str, sender: Caller, example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(task_id: str, task: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(example, "do_once", locked)
    outcome = await sender.send(a_task(callback=url), 1, NOW)
    assert (outcome.kind, outcome.retry_after_ms) == (OutcomeKind.BUSY, None)


async def test_the_example_fails_when_its_work_fails_and_does_it_the_next_time(
    url: str, sender: Caller, example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(database: object, task: object) -> None:
        raise ValueError

    task = a_task(callback=url)
    with monkeypatch.context() as once:
        once.setattr(example, "work", failing)
        assert (await sender.send(task, 1, NOW)).status == 500
    assert (await sender.send(task, 2, NOW)).kind is OutcomeKind.DONE
    assert orders() == ["hello"]


async def test_the_example_wants_its_token(
    url: str, sender: Caller, example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "TOKEN", "secret")
    stranger = await sender.send(a_task(callback=url), 1, NOW)
    friend = await sender.send(a_task(callback=url, headers={"Authorization": "Bearer secret"}), 1, NOW)
    assert (stranger.status, friend.kind) == (401, OutcomeKind.DONE)


async def test_what_arrives_is_what_is_documented(sender: Caller, example: ModuleType) -> None:
    came: list[str] = []

    def note(receiver: object, *_: object) -> None:
        came.extend(receiver.headers.keys())  # type: ignore[attr-defined] # the example has no types

    example.Receiver.log_request = note
    with receiving(example) as url:
        await sender.send(a_task(callback=url), 1, NOW)
    (sample,) = re.findall(r"^```\n(POST .*?)^```$", RECEIVERS, re.MULTILINE | re.DOTALL)
    head, body = sample.strip().split("\n\n")
    told = dict(line.split(": ", 1) for line in head.splitlines()[1:])
    assert {name.lower() for name in told} == {name.lower() for name in came}
    assert int(told["Content-Length"]) == len(body)
