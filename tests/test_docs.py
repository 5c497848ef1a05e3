"""Check the documents against the code: names exist, examples run, links lead somewhere."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import re
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from functools import cache
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace

import click
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from later.api.problem_types import PROBLEM_TYPES
from later.api.problems import Problem
from later.api.response_schemas import (
    AckResponse,
    BatchCreateResponse,
    BatchDeleteResponse,
    BatchQueryResponse,
    ClaimedTaskView,
    ClaimResponse,
    CreateResponse,
    DeleteResponse,
    ExtendResponse,
    JobResponse,
    ListedJobView,
    ListResponse,
    MovedTasksResponse,
    NackResponse,
    ReleaseResponse,
)
from later.api.schedule_answers import ScheduleResponse, ScheduleView
from later.cli.commands.move import MOVE_FROM, MOVE_TO
from later.cli.groups import load_command
from later.cli.program import later
from later.cli.root_key import ROOT_KEY_VARIABLE
from later.cli.task_command import command_variables
from later.client.consumer import ClaimedJson
from later.client.key_source import KEY
from later.config import load
from later.core.explain import TopicFacts, explain_topic
from later.core.operator_event import EVENTS_TOPIC
from later.core.policy import DEFAULT_POLICY, POLICY_FIELDS, Ack, Policy, Sign, format_policy
from later.core.reply import Reply, parse_reply
from later.core.retry import OutcomeKind
from later.core.signing import KeyRing, Master, SecretScope
from later.core.task_view import DeadLetterView, FailureView, LastErrorView, TaskView
from later.handlers.handler_metrics import HandlerMetrics
from later.metrics import Metrics
from later.option_table import OPTIONS
from later.store.url import PASSWORD, PASSWORD_FILE, SENTINEL_PASSWORD
from later.testing.plugin import MARKER
from later.testing.plugin import NAME as APPLICATION
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.receivers import PolicySender, a_sender

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
DOCUMENTS += [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "deploy").glob("*.md"))]
CHANGELOG = ROOT / "CHANGELOG.md"
"""Links only: its entries also have names that exist no more."""
RECEIVERS = (ROOT / "docs" / "receivers.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
HANDLERS = (ROOT / "docs" / "python-handlers.md").read_text()
METRICS = (ROOT / "docs" / "metrics.md").read_text()
LOG = (ROOT / "docs" / "log.md").read_text()
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
ANSWERS = (ROOT / "docs" / "answers.md").read_text()
OF_RECEIVERS = "LATER_SIGNING_SECRETS"
"""The variable by which a receiver gets its secrets."""
TASK_VARIABLES = command_variables(ClaimedJson("", "", "", {}))
"""The variables of a command that `later work` runs."""
SIGNED = SecretScope(Sign.NAMESPACE, "default")
KEY_RING = KeyRing([Master(bytes(32))])
"""The keys that sign the calls of the documented receivers."""
TOPICS = (ROOT / "docs" / "topics.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def code_blocks(language: str, text: str) -> list[str]:
    """Return the document's fenced blocks in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def section_text(heading: str, text: str) -> str:
    """Return the text between a heading and the next one."""
    return re.split(r"^#+ ", text.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def names_in_first_column(table: str) -> list[str]:
    """Return everything in backticks in the first column of a table."""
    rows = re.findall(r"^\| ([^|]*`[^|]*) \|", table, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


# Errors


def test_every_problem_type_is_documented_with_its_status() -> None:
    table = section_text("Errors of the API", OPERATIONS)
    documented = dict(re.findall(r"^\| `([a-z-]+)` \| (\d+)", table, re.MULTILINE))
    assert documented == {name: str(type.status) for name, type in PROBLEM_TYPES.items()}


SCHEMAS: dict[str, list[type[msgspec.Struct]]] = {
    "`POST /create`": [CreateResponse],
    "`POST /query`": [TaskView, LastErrorView],
    "Failures": [FailureView],
    "Dead letters": [DeadLetterView],
    "Run-now and redrive of several tasks": [MovedTasksResponse],
    "`POST /delete`": [DeleteResponse],
    "`POST /list`": [ListResponse],
    "Batches": [BatchCreateResponse, BatchQueryResponse, BatchDeleteResponse],
    "`POST /claim`": [ClaimResponse, ClaimedTaskView],
    "`POST /ack`, `/nack`, `/release`, `/extend`": [AckResponse, NackResponse, ReleaseResponse, ExtendResponse],
    "`PUT /schedules/{id}`": [ScheduleResponse],
    "`GET /schedules/{id}`": [ScheduleView],
    "`GET /jobs/{id}`": [JobResponse],
    "`GET /jobs`": [ListedJobView],
    "Errors": [Problem],
}
"""The answers that each section of answers.md explains."""


@each_case("section", SCHEMAS)
def test_every_field_of_an_answer_is_documented_and_no_other(section: str) -> None:
    fields = {field for schema in SCHEMAS[section] for field in schema.__struct_fields__}
    assert {*names_in_first_column(section_text(section, ANSWERS))} == fields


# Metrics


def exported_metrics() -> dict[str, str]:
    """Return the type of every metric by its name, as it is scraped."""
    collected = Metrics().registry.collect()
    return {metric.name + ("_total" if metric.type == "counter" else ""): metric.type for metric in collected}


def test_every_exported_metric_is_documented_with_its_type_and_no_other() -> None:
    assert dict(re.findall(r"^\| `((?:later|process)_\w+)` \| (\w+)", METRICS, re.MULTILINE)) == exported_metrics()


def handler_metrics() -> dict[str, str]:
    """Return the type of every metric that an application exports."""
    registry = CollectorRegistry()
    HandlerMetrics(registry, ["order"])
    return {metric.name + ("_total" if metric.type == "counter" else ""): metric.type for metric in registry.collect()}


def test_every_metric_of_handlers_is_documented_with_its_type_and_no_other() -> None:
    documented = re.findall(r"^\| `(later_\w+)` \| (\w+)", section_text("Metrics", HANDLERS), re.MULTILINE)
    assert dict(documented) == handler_metrics()


def test_every_ticker_of_daemons_is_a_documented_label_and_no_other() -> None:
    code = "".join(
        path.read_text()
        for layer in ("daemon", "processes", "worker")
        for path in (ROOT / "later" / layer).rglob("*.py")
    )
    built = re.findall(r'\b(?:build|build_ticker|on_local_clock)\(\s*"(\w+)"', code)
    listed = re.search(r"failed ticks, by `ticker`: ([\w, ]+); with `--processes` also ([\w, ]+) \|", METRICS)
    assert listed is not None
    assert sorted({*built}) == sorted(", ".join(listed.groups()).split(", "))


@each_case("document", [*DOCUMENTS, RULES, RULES.with_name("rules_test.yml")])
def test_every_named_metric_exists(document: Path) -> None:
    known = exported_metrics() | handler_metrics()
    histograms = {name for name, kind in known.items() if kind == "histogram"}
    parts = {name + part for name in histograms for part in ("_bucket", "_count", "_sum")}
    assert set(re.findall(r"\blater_\w+", document.read_text())) <= known.keys() | parts | {APPLICATION, MARKER}


def alarms() -> list[tuple[str, str, str, str]]:
    """Return each alarm in the rules: its name, severity, expression, and how long it must be true."""
    rule = re.compile(
        r"alert: (\w+)\n +expr: (?:>-\n)?((?:.*\n)+?)(?: +for: (\w+)\n)? +labels: {severity: (\w+)}", re.MULTILINE
    )
    return [
        (name, severity, " ".join(expr.split()), time) for name, expr, time, severity in rule.findall(RULES.read_text())
    ]


def test_every_alarm_is_explained_and_quoted_as_it_is() -> None:
    quote = r"^\*\*(Later\w+)\*\* \((\w+)\)\.\n`([^`]+)`(?: for (\w+))?$"
    assert alarms()
    assert alarms() == re.findall(quote, OPERATIONS, re.MULTILINE)


def test_every_alarm_has_a_test_in_which_it_fires() -> None:
    text = RULES.with_name("rules_test.yml").read_text()
    fires = set(re.findall(r"alertname: (\w+)\n +eval_time: \w+\n +exp_alerts:\n", text))
    assert fires == {name for name, *_ in alarms()}


def test_every_alarm_has_tests_in_which_it_does_not_fire() -> None:
    text = RULES.with_name("rules_test.yml").read_text()
    [silent] = re.findall(r"alert_rule_test: &nothing_fires\n((?: +- {.*}\n)+)", text)
    names = re.findall(r"{alertname: (\w+), eval_time: 25m}", silent)
    assert names == re.findall(r"{alertname: (\w+), eval_time: 40m}", silent)
    assert names == [name for name, *_ in alarms()]
    quiet = re.findall(r"name: nothing fires (.*)\n(?:.*\n)+?    alert_rule_test: [&*]nothing_fires\n", text)
    for case in ("healthy daemon", "paused", "its rate", "first scrape", "restart"):
        assert any(case in name for name in quiet), case


@pytest.mark.system
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian's package prometheus)")
@pytest.mark.parametrize("arguments", [["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]])
def test_the_rules_pass_promtool(arguments: list[str]) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=RULES.parent, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# The log


LIBRARY_PACKAGES = {"handlers", "in_process", "puller", "receiver", "run"}
"""Packages that run in applications. They log sentences by `logging`, as applications do."""


@cache
def logged_events() -> dict[str, str]:
    """Return the level of every event in the daemon's code; the more severe one if it has two."""
    paths = [path for path in (ROOT / "later").rglob("*.py") if path.parent.name not in LIBRARY_PACKAGES]
    code = "".join(path.read_text() for path in sorted(paths))
    events = re.findall(r'\blog\.(debug|info|warning|error|exception)\(\s*"([^"]+)"', code)
    levels = ("debug", "info", "warning", "error", "exception")
    return {event: level for level, event in sorted(events, key=lambda found: levels.index(found[0]))}


def test_every_documented_event_is_logged() -> None:
    events = names_in_first_column(LOG)
    assert events
    assert [event for event in events if not any(found.startswith(event) for found in logged_events())] == []


def test_every_event_above_debug_is_documented() -> None:
    events = tuple(names_in_first_column(LOG))
    assert [e for e, level in logged_events().items() if level != "debug" and not e.startswith(events)] == []


# Options

FOREIGN_OPTIONS = {
    *("--require-hashes", "--no-deps", "--no-build-isolation", "--now"),  # pip, systemctl
    *("--name", "--stop-timeout", "--read-only", "--tmpfs", "--cap-drop", "--security-opt", "--rm"),  # docker
    *("--env-file", "--no-deps", "--scale"),  # docker compose
    *("--from-file", "--from-env-file"),  # kubectl
    *("--bind", "--masteruser", "--masterauth", "--replicaof", "--sentinel"),  # valkey-server
    *("--cluster-enabled", "--cluster-require-full-coverage", "--cluster-node-timeout"),
    *("--user", "--cluster", "--cluster-replicas"),  # valkey-cli
    *("--fix",),  # valkey-check-aof
    *("--pid", "--duration", "--output", "--format", "--rate"),  # py-spy
    *("--py-files", "--host", "--port", "--cores", "--memory"),  # spark-submit, spark-class
    *("--pipe",),  # redis-cli
    *("--enable-feature",),  # prometheus
}


def load_commands() -> dict[str, click.Command]:
    """Return every command by its words: `up`, `topics list`."""
    found = {name: load_command(lazy) for name, lazy in later.lazy_commands.items()}
    for name, group in [*found.items()]:
        below = group.commands if isinstance(group, click.Group) else {}
        found |= {f"{name} {word}": command for word, command in below.items()}
    return found


COMMANDS = load_commands()


def command_options(command: str) -> set[str]:
    return {option for parameter in COMMANDS[command].params for option in parameter.opts} | {"--help"}


def parse_options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", text))


@every_document
def test_every_named_option_exists(document: Path) -> None:
    own_options = {option for command in COMMANDS for option in command_options(command)}
    scripts = [path.read_text() for folder in ("scripts", "deploy") for path in (ROOT / folder).rglob("*.py")]
    script_options = set(re.findall(r'"(--[a-z-]+)"', "".join(scripts)))
    assert parse_options(document.read_text()) <= own_options | script_options | FOREIGN_OPTIONS


@every_document
def test_a_command_line_has_only_options_of_its_command(document: Path) -> None:
    for line in re.findall(r"\blater (\w+(?: [^`\n#;]*)?)(?=[`\n#;])", document.read_text()):
        group, *below = line.split()
        command = " ".join([group, *below[:1]]) if isinstance(COMMANDS.get(group), click.Group) else group
        if command in COMMANDS:
            assert parse_options(line) <= command_options(command)


@every_document
def test_every_named_environment_variable_exists(document: Path) -> None:
    assert set(re.findall(r"\bLATER_[A-Z_]+\b", document.read_text())) <= {
        *(PASSWORD, PASSWORD_FILE, SENTINEL_PASSWORD, ROOT_KEY_VARIABLE, KEY, OF_RECEIVERS),
        *("LATER_CONFIG", "LATER_CALLBACK", MOVE_FROM, MOVE_TO, *TASK_VARIABLES),
    } | {option.variable for option in OPTIONS}


def test_the_documented_defaults_of_options_are_right() -> None:
    rows = re.findall(r"^\| `--([a-z-]+)` \| ([^|]+) \|", section_text("Options to know", OPERATIONS), re.MULTILINE)
    defaults = {option.name: option.shown_default or option.default or "" for option in OPTIONS}
    in_words = {"7d": "7 days", "0s": "no limit"}
    documented = {name: text.replace(" ", "") for name, text in rows}
    assert documented == {n: in_words.get(defaults[n], defaults[n]).replace(" ", "") for n, _ in rows}


# Policies


def test_every_field_of_a_policy_is_documented_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]*\| `?(\w+)[^|]*\|", section_text("The fields", TOPICS), re.MULTILINE)
    defaults = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in format_policy(DEFAULT_POLICY).items()
    }
    assert dict(rows) == defaults


DELIVERY_LIMITS = {"rate": "topic-rate", "concurrency": "topic-concurrency", "ramp": "ramp"}
"""Fields whose options are in a separate table, because most of them have other names."""


def test_every_field_has_its_documented_option() -> None:
    table = section_text("The daemon's options", TOPICS)
    rows = re.findall(r"^\| `--([a-z-]+)` \| `(\w+)` \| ([^|:]+?)(?::[^|]*)? \|$", table, re.MULTILINE)
    defaults = {option.name: option.default for option in OPTIONS if "up" in option.commands}
    assert rows == [
        (name, field, defaults[name])
        for field in POLICY_FIELDS
        for name in [field.replace("_", "-")]
        if field not in DELIVERY_LIMITS
        and field not in ("paused", "deliver", "callback", "dead_to", "dead_ttl", "on_dead", "on_done")
    ]
    rows = re.findall(r"^\| `--([a-z-]+)` \| ([^|:]+?)(?::[^|]*)? \| `(\w+)` \|$", table, re.MULTILINE)
    assert rows == [(name, defaults[name], field) for field, name in DELIVERY_LIMITS.items()]


# Code, JSON and links


@every_document
def test_every_named_file_exists(document: Path) -> None:
    named = re.findall(r"`((?:later|tests|scripts|deploy|docs)/[\w./-]*)`", document.read_text())
    assert [name for name in named if name != EVENTS_TOPIC and not (ROOT / name).exists()] == []


@every_document
def test_python_examples_import_names_that_exist(document: Path) -> None:
    for example in code_blocks("python", document.read_text()):
        for node in ast.walk(ast.parse(example)):
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("later."):
                module = importlib.import_module(node.module)
                assert [name.name for name in node.names if not hasattr(module, name.name)] == []


def test_every_option_is_in_the_configuration_page_with_its_default() -> None:
    rows = re.findall(r"^\| `--([a-z-]+)` \| (.*?) \| ", CONFIGURATION, re.MULTILINE)
    assert sorted(rows) == sorted((option.name, option.shown_default or option.default) for option in OPTIONS)


def test_the_example_of_a_configuration_file_is_one(tmp_path: Path) -> None:
    (example,) = code_blocks("toml", CONFIGURATION)
    file = tmp_path / "later.toml"
    file.write_text(example)
    for command, receivers in (("serve", []), ("worker", ["*.bank.example"])):
        config = load(command, {"config": str(file)}, {})
        assert (config.guard, config.policy.sign, [*config.receivers]) == ("on", "origin", receivers)


def test_every_variable_of_the_deployment_is_an_options() -> None:
    files = [path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    named = {name for path in files for name in re.findall(r"\bLATER_[A-Z_]+\b", path.read_text())}
    assert named <= {ROOT_KEY_VARIABLE, *(option.variable for option in OPTIONS)}


@every_document
def test_json_in_examples_is_valid(document: Path) -> None:
    text = document.read_text()
    for example in [*code_blocks("json", text), *re.findall(r"-d '(.*?)'", text, re.DOTALL)]:
        json.loads(example)


@each_case("document", [*DOCUMENTS, CHANGELOG])
def test_every_link_leads_somewhere(document: Path) -> None:
    for file, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", document.read_text()):
        target = (document.parent / file) if file else document
        assert target.exists(), f"there is no {target}"
        assert not anchor or anchor in heading_anchors(target)


def heading_anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


# The architecture


def test_the_table_of_modules_has_every_module_in_its_place() -> None:
    documented, package = set(), ""
    for cells in re.findall(
        r"^\| ([^|]*)\| ([^|]*)\|", section_text("Where each thing is", ARCHITECTURE), re.MULTILINE
    ):
        package = cells[0].strip().strip("`") or package
        documented |= {(package, module) for module in re.findall(r"`(\w+)`", cells[1])}
    files = [path.relative_to(ROOT / "later") for path in (ROOT / "later").rglob("*.py") if path.stem != "__init__"]
    assert documented == {(str(path.parent).replace(".", "top level"), path.stem) for path in files}


# Explanations


NIGHT = 1_790_000_000_000 // 86_400_000 * 86_400_000 + 11_550_000
"""03:12:30 UTC, in ms: ten seconds before the times of the examples."""
IDLE_TOPIC = TopicFacts(
    name="order", policy=DEFAULT_POLICY, delay=0, unack=0, error=0, dead=0, due=0, oldest_due_at=None, next_due_at=None,
    paused=False, held_until=None, full_speed_at=None, workers=1, last_heartbeat_at=NIGHT,
)  # fmt: skip
LATE_TOPIC = IDLE_TOPIC._replace(due=1204, delay=1204, oldest_due_at=NIGHT - 720_000)
STUCK_TOPICS = (
    IDLE_TOPIC,
    IDLE_TOPIC._replace(workers=0, last_heartbeat_at=None),
    IDLE_TOPIC._replace(workers=0, last_heartbeat_at=NIGHT - 300_000),
    IDLE_TOPIC._replace(paused=True, policy=Policy(paused=True)),
    LATE_TOPIC._replace(held_until=NIGHT + 10_000),
    IDLE_TOPIC._replace(origin_holds={"shop.example": NIGHT + 10_000}),
    IDLE_TOPIC._replace(waiting_for_origins={"shop.example": 100}),
    IDLE_TOPIC._replace(waiting_after_faults=3),
    LATE_TOPIC._replace(held_until=NIGHT + 20, policy=Policy(rate=50)),
    LATE_TOPIC._replace(unack=10, policy=Policy(concurrency=10)),
    LATE_TOPIC._replace(full_speed_at=NIGHT + 20_000),
    IDLE_TOPIC._replace(delay=1, next_due_at=NIGHT + 10_800_000),
    IDLE_TOPIC._replace(error=3, dead=12),
    IDLE_TOPIC._replace(dead=12),
)


def test_the_documented_explanations_are_given() -> None:
    table = section_text("1. Why has nothing run?", OPERATIONS).split("| meaning |")[1]
    documented = re.findall(
        r'"([^"]+)"', "".join(row.split("|")[1] for row in table.splitlines() if row.count("|") > 2)
    )
    given = "; ".join(explain_topic(topic, NIGHT).sentence for topic in STUCK_TOPICS)
    assert documented
    assert [text for text in documented if text not in given] == []


# Receivers


def test_a_failing_task_is_retried_as_long_as_documented() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([\d,]+) s", RECEIVERS, re.MULTILINE)
    assert rows
    for retry, attempts, seconds in rows:
        pauses = [DEFAULT_POLICY.retry_pause_ms(failures, 0) for failures in range(1, int(retry) + 1)]
        assert (int(attempts), int(seconds.replace(",", ""))) == (int(retry) + 1, sum(pauses) / 1000)


def test_the_wrong_codes_fail_and_the_right_one_is_done() -> None:
    trap = section_text("The trap: a `code` of your own", RECEIVERS)
    wrong, (right,) = re.findall(r"`(\{.*?\})`", trap), code_blocks("json", trap)
    assert wrong
    assert {judge_reply(answer) for answer in wrong} == {OutcomeKind.FAILED}
    assert judge_reply(right) is OutcomeKind.DONE


def judge_reply(body: str) -> OutcomeKind:
    return parse_reply(Reply(status=200, body=body.encode()), NOW, Ack.AUTO).kind


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the document's Python receiver as a module, with a new database."""
    file = tmp_path / "receiver.py"
    _, code = code_blocks("python", RECEIVERS)  # the first one is a line of a package's use
    file.write_text(code)
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("receiver", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.prepare()
    monkeypatch.setattr(module, "SECRETS", [secret.text for secret in KEY_RING.secrets(SIGNED, NOW)])
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: NOW / 1000))
    return module


@contextmanager
def run_server(example: ModuleType) -> Iterator[str]:
    """Run the example's server on a free port; yield its URL."""
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
    with run_server(example) as url:
        yield url


@pytest.fixture
async def sender() -> AsyncIterator[PolicySender]:
    async with a_sender(timeout_ms=15_000, key_ring=lambda: KEY_RING) as sender:
        yield sender


def stored_orders() -> list[str]:
    """Return the contents that the example has stored."""
    with closing(sqlite3.connect("receiver.db")) as database:
        return [content for (content,) in database.execute("SELECT content FROM orders")]


async def test_the_example_does_the_work_once(url: str, sender: PolicySender) -> None:
    task = a_task(callback=url)
    first, again = await sender.send(task, 1, NOW), await sender.send(task, 2, NOW)
    assert (first.kind, again.kind) == (OutcomeKind.DONE, OutcomeKind.DONE)
    assert stored_orders() == ["hello"]


async def test_the_example_does_the_work_once_when_calls_overlap(url: str, sender: PolicySender) -> None:
    task = a_task(callback=url)
    outcomes = await asyncio.gather(*(sender.send(task, 1, NOW) for _ in range(4)))
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.DONE}
    assert stored_orders() == ["hello"]


async def test_the_example_answers_busy_to_a_topic_that_a_newer_instance_may_know(
    url: str, sender: PolicySender
) -> None:
    outcome = await sender.send(a_task(callback=url, topic="mail"), 1, NOW)
    assert (outcome.kind, outcome.message) == (OutcomeKind.BUSY, "unknown topic")


async def test_the_example_answers_busy_while_its_database_is_locked(
    url: str, sender: PolicySender, example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(task_id: str, task: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(example, "do_once", locked)
    outcome = await sender.send(a_task(callback=url), 1, NOW)
    assert (outcome.kind, outcome.retry_after_ms) == (OutcomeKind.BUSY, None)


async def test_the_example_fails_with_its_work_and_succeeds_the_next_time(
    url: str, sender: PolicySender, example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(database: object, task: object) -> None:
        raise ValueError

    task = a_task(callback=url)
    with monkeypatch.context() as once:
        once.setattr(example, "work", failing)
        failed = await sender.send(task, 1, NOW)
    assert (failed.status, failed.message) == (500, "ValueError()")
    assert (await sender.send(task, 2, NOW)).kind is OutcomeKind.DONE
    assert stored_orders() == ["hello"]


async def test_the_example_takes_only_what_is_signed_with_its_secrets_and_not_too_old(
    url: str, sender: PolicySender, example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = a_task(callback=url)
    monkeypatch.setattr(example, "SECRETS", ["whsec_AAAA", *example.SECRETS])
    assert (await sender.send(task, 1, NOW - 299_000)).kind is OutcomeKind.DONE
    for late in (301_000, -301_000):
        assert (await sender.send(task, 1, NOW - late)).status == 401
    async with a_sender(timeout_ms=15_000) as unsigned:
        assert (await unsigned.send(task, 1, NOW)).status == 401
    monkeypatch.setattr(example, "SECRETS", ["whsec_AAAA"])
    assert (await sender.send(task, 1, NOW)).status == 401


async def test_the_documented_request_is_the_one_that_arrives(sender: PolicySender, example: ModuleType) -> None:
    received: list[str] = []

    def note(receiver: object, *_: object) -> None:
        received.extend(receiver.headers.keys())  # type: ignore[attr-defined] # the example has no types

    example.Receiver.log_request = note
    with run_server(example) as url:
        await sender.send(a_task(callback=url), 1, NOW)
    (sample,) = re.findall(r"^```\n(POST .*?)^```$", RECEIVERS, re.MULTILINE | re.DOTALL)
    head, body = sample.strip().split("\n\n")
    documented = dict(line.split(": ", 1) for line in head.splitlines()[1:])
    assert {name.lower() for name in documented} == {name.lower() for name in received}
    assert int(documented["Content-Length"]) == len(body)
