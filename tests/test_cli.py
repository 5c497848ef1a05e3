"""The command line: exit statuses, what is printed where, and a file that gets through once whatever happens."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import structlog

from later.cli import policy_options, store_access, tables
from later.cli.batch import Line, Unfit, read_lines
from later.cli.bulk.group import bulk
from later.cli.commands import status
from later.cli.commands.doctor import examine_store
from later.cli.exit import ExitStatus, exit_code
from later.cli.groups import load_command
from later.cli.main import later, main, run
from later.cli.options import API_CLIENT
from later.client.http import MAX_LINE_BYTES
from later.config import OPTIONS, Config, Option
from later.core.errors import ConfigError, StoreDown
from later.core.policy import DEFAULT, FIELDS
from later.core.policy import format_policy as written
from later.store.keys import Bucket
from later.store.stats import ServerFacts, TopicCounts
from tests.builders import a_task
from tests.store_fixture import StoreFixture

Capture = pytest.CaptureFixture[str]

ROOT = Path(__file__).parents[1]
MAIN = sys.modules["later.cli.main"]


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.body.splitlines()]


class Reply(NamedTuple):
    """`body` is sent as JSON unless it is bytes; with `lost` the connection ends in the middle of it."""

    status: int
    body: Any
    retry_after: str | None = None
    lost: bool = False


class Api:
    """An API that answers what it was told to; then, batches by their lines: a topic "bad" is refused."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self.replies: list[Reply | Callable[[Request], Reply]] = []
        self.known: set[str] = set()

    def answer(self, request: Request) -> Reply:
        self.requests.append(request)
        if not self.replies:
            return self.take(request)
        reply = self.replies.pop(0)
        return reply if isinstance(reply, Reply) else reply(request)

    def take(self, request: Request) -> Reply:
        results: list[dict[str, Any]] = []
        for line in request.lines:
            if line["topic"] == "bad":
                results.append({"error": {"status": 400, "detail": "topic: expected a good one", "field": "topic"}})
            else:
                results.append({"id": line["id"], "created": line["id"] not in self.known})
                self.known.add(line["id"])
        return Reply(200, {"results": results})


class Handler(BaseHTTPRequestHandler):
    api: Api

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PATCH(self) -> None:
        self.answer()

    def do_DELETE(self) -> None:
        self.answer()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        reply = self.api.answer(Request(self.command, self.path, dict(self.headers), body))
        sent = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(sent) + (1 if reply.lost else 0)))
        if reply.retry_after is not None:
            self.send_header("Retry-After", reply.retry_after)
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, format: str, *args: Any) -> None:
        """Not into the tests' output."""


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    api = Api()
    server = HTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"api": api}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.005})
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("LATER_URL", api.url)
    yield api
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that were asked for; none is made."""
    asked: list[float] = []
    monkeypatch.setattr("later.cli.commands.create_file.time.sleep", asked.append)
    return asked


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No later.toml and no variables of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("LATER_")]:
        monkeypatch.delenv(name)
    yield
    structlog.reset_defaults()


def problem(status: int, detail: str, retry_after: str | None = None) -> Reply:
    return Reply(status, {"title": "x", "status": status, "detail": detail}, retry_after)


def status_of(*arguments: str) -> int:
    return run(arguments).code


def a_file(*tasks: dict[str, Any] | str) -> str:
    Path("tasks.ndjson").write_text("".join(f"{t if isinstance(t, str) else json.dumps(t)}\n" for t in tasks), "utf-8")
    return "tasks.ndjson"


def tasks(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"topic": "order", "callback": "http://a/", "id": f"n{i}", **fields} for i in range(count)]


# The program


@pytest.mark.system
def test_the_version_is_told_by_the_module_too() -> None:
    done = subprocess.run([sys.executable, "-m", "later", "--version"], capture_output=True, text=True, check=True,
                          cwd=ROOT)  # fmt: skip
    assert done.stdout == "later 0.1.0\n"


@pytest.mark.system
def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from later.cli.main import run; run(['--help']);"
        "print(sorted({'aiohttp', 'asyncio', 'redis', 'rich', 'structlog', 'http.client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=ROOT)  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"


COMMANDS = [
    words
    for name, command in ((name, load_command(lazy)) for name, lazy in later.lazy_commands.items())
    for words in ([(name, below) for below in command.commands] if isinstance(command, click.Group) else [(name,)])
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_an_example_and_its_options_with_default_and_variable(
    words: tuple[str, ...], capsys: Capture
) -> None:
    assert status_of(*words, "-h") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"Examples: later {' '.join(words)}" in said
    assert "[default: later.toml, if it exists; LATER_CONFIG]" in said
    wanted = options_wanted(words)
    for option in OPTIONS:
        shown = f"--{option.name} {option.type.metavar}" in said and f"; {option.variable}]" in said
        assert shown == (option in wanted), option.name


def options_wanted(words: tuple[str, ...]) -> list[Option]:
    """Options of the table that a command has: those of bulk's some of the calls', with a --url of their own."""
    if words[0] == "bulk":
        command = bulk.commands[words[1]]
        return [o for o in OPTIONS if o.name != "url" and o.key in {parameter.name for parameter in command.params}]
    daemons = {name for option in OPTIONS for name in option.commands}
    return [option for option in OPTIONS if (words[0] if words[0] in daemons else API_CLIENT) in option.commands]


@pytest.mark.parametrize(
    ("group", "listed"),
    [
        ("topics", ["list", "show", "set", "unset", "pause", "resume", "purge"]),
        ("namespaces", ["show", "set", "unset"]),
        ("dead", ["list", "redrive", "purge"]),
        ("bulk", ["create", "verify", "cancel", "export", "report"]),
    ],
)
def test_a_group_lists_its_commands(group: str, listed: list[str], capsys: Capture) -> None:
    assert status_of(group, "-h") == 0
    assert listed_in(capsys.readouterr().out) == listed


def listed_in(help: str) -> list[str]:
    return [line.split()[0] for line in help.partition("Commands:\n")[2].split("\n\n")[0].splitlines()]


def test_commands_are_listed_in_the_order_of_use(capsys: Capture) -> None:
    assert status_of("--help") == 0
    assert listed_in(capsys.readouterr().out) == [
        *("up", "serve", "worker"), *("create", "query", "delete"), *("list", "explain", "update", "run-now", "dead"),
        *("topics", "namespaces"), "bulk", *("status", "doctor"),
    ]  # fmt: skip


@pytest.mark.parametrize("arguments", [["nope"], ["up", "--nope"], ["query"], ["create", "--batch", "0"], ["up", "x"]])
def test_wrong_usage_is_status_2(arguments: list[str], capsys: Capture) -> None:
    assert status_of(*arguments) == 2
    assert "Usage:" in capsys.readouterr().err


def test_a_wrong_value_is_status_2_in_one_line(capsys: Capture) -> None:
    assert status_of("up", "--tick", "0") == 2
    assert capsys.readouterr().err == "later: --tick 0: expected a duration of at least 0.01 s\n"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (StoreDown("the store\nis away"), 1, "later: the store is away\n"),
        (ConfigError("--x y: expected z"), 2, "later: --x y: expected z\n"),
        (OSError(98, "address already in use"), 1, "later: address already in use\n"),
        (FileNotFoundError(2, "No such file or directory", "x"), 1, "later: x: No such file or directory\n"),
        (ConnectionRefusedError("refused \x1b[2J"), 1, "later: refused \\x1b[2J\n"),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
    ],
)
def test_what_did_not_work_is_said_in_one_line(error: BaseException, status: int, said: str, capsys: Capture) -> None:
    def work() -> int:
        raise error

    assert exit_code(work) == status
    assert capsys.readouterr().err == said


def test_a_fault_of_our_own_shows_where_it_is(capsys: Capture) -> None:
    assert exit_code(lambda: 1 // 0) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.system
def test_a_reader_that_leaves_is_no_complaint() -> None:
    code = "from later.cli import main; import sys; sys.argv = ['later', 'up', '--help']; main()"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, check=False,
                          cwd=ROOT)  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


# The daemons


Ran = list[tuple[str, str, Config]]


@pytest.fixture
def daemons(monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Daemons that only note what they were to do, and whether alone or as several processes."""
    ran: Ran = []

    def note(how: str) -> Callable[[str, Config], int]:
        def run(command: str, config: Config) -> int:
            ran.append((how, command, config))
            return 7

        return run

    monkeypatch.setattr("later.daemon.single.run", note("alone"))
    monkeypatch.setattr("later.processes.supervisor.run", note("several"))
    return ran


def test_a_daemon_runs_with_its_configuration_and_leaves_at_once(daemons: Ran) -> None:
    assert run(["up", "--tick", "1"]) == ExitStatus(7, immediate=True)
    assert run(["serve", "--redis", "redis://a"]) == ExitStatus(7, immediate=True)
    assert run(["worker", "--data", "d"]) == ExitStatus(7, immediate=True)
    (*up, up_config), (*serve, serve_config), (*worker, worker_config) = daemons
    assert (up, serve, worker) == (["alone", "up"], ["alone", "serve"], ["alone", "worker"])
    assert (up_config.tick_ms, up_config.redis_given) == (1000, False)
    assert serve_config.store_url == "redis://a"
    assert worker_config.store_url == f"unix://{Path.cwd()}/d/store.sock"


@pytest.mark.parametrize("command", ["up", "serve", "worker"])
def test_a_daemon_of_several_processes_has_a_supervisor(command: str, daemons: Ran) -> None:
    run([command, "--processes", "3"])
    ((how, ran, config),) = daemons
    assert (how, ran, config.processes) == ("several", command, 3)


def test_a_daemon_that_fails_leaves_at_once_too(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def fail(command: str, config: Config) -> int:
        raise OSError(98, "address already in use")

    monkeypatch.setattr("later.daemon.single.run", fail)
    assert run(["up"]) == ExitStatus(1, immediate=True)
    assert capsys.readouterr().err == "later: address already in use\n"


def test_main_leaves_without_waiting_for_the_threads_of_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    monkeypatch.setattr(MAIN, "run", lambda arguments: ExitStatus(3, immediate=True))
    monkeypatch.setattr("os._exit", left.append)
    with pytest.raises(SystemExit):
        main()
    assert left == [3]


# One task


def test_create_sends_the_fields_and_prints_the_id(api: Api, capsys: Capture) -> None:
    api.replies = [Reply(200, {"id": "n1"})]
    assert status_of(
        "create", "--topic", "order", "--callback", "http://a/", "--delay", "1.5m", "--retry", "2", "--content", "ü",
        "--header", "X-A: b: c", "--header", "X-B:", "--ttl", "7d", "--id", "n1",
    ) == 0  # fmt: skip
    assert capsys.readouterr().out == "n1\n"
    (request,) = api.requests
    assert request.path == "/create"
    assert request.headers["User-Agent"] == "later/0.1.0"
    assert request.json == {
        "topic": "order", "callback": "http://a/", "delay": 90, "retry": 2, "content": "ü",
        "headers": {"X-A": "b: c", "X-B": ""}, "ttl": 604_800, "id": "n1",
    }  # fmt: skip


def test_create_prints_the_answer_as_json_and_takes_a_path_before_the_call(api: Api, capsys: Capture) -> None:
    api.replies = [Reply(200, {"id": "n1", "created": True})]
    create = ("create", "--topic", "o", "--callback", "http://a/", "--execute-time", "1.5")
    assert status_of(*create, "--json", "--url", f"{api.url}/later/") == 0
    assert json.loads(capsys.readouterr().out) == {"id": "n1", "created": True}
    assert api.requests[0].path == "/later/create"
    assert api.requests[0].json["execute_time"] == 1.5


def test_create_says_that_an_id_was_known_and_hands_a_warning_on(api: Api, capsys: Capture) -> None:
    api.replies = [Reply(200, {"id": "n1", "created": False, "warning": "ttl is less than delay"})]
    assert status_of("create", "--topic", "o", "--callback", "http://a/", "--id", "n1") == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("n1\n", "later: this id exists already: nothing was created\nlater: ttl is less than delay\n")


def test_content_comes_from_a_file_or_standard_input(
    api: Api, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    api.replies = [Reply(200, {"id": "a"}), Reply(200, {"id": "b"})]
    create = ("create", "--topic", "o", "--callback", "http://a/", "--content-file")
    Path("c").write_text("from ä file\n", "utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from stdin")))
    assert (status_of(*create, "c"), status_of(*create, "-")) == (0, 0)
    assert [request.json["content"] for request in api.requests] == ["from ä file\n", "from stdin"]
    Path("c").write_bytes(b"\xff")
    assert (status_of(*create, "c"), status_of(*create, "none")) == (1, 1)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("later: --content-file c: not UTF-8")
    assert second == "later: none: No such file or directory"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--callback", "http://a/"], "Missing option '--topic'."),
        (["--topic", "o"], "Missing option '--callback'."),
        (["--topic", "o", "--callback", "x", "--content", "", "--content-file", "x"], "Either --content or"),
        (["--topic", "o", "--callback", "x", "--job", "j"], "--job goes with --from."),
        (["--from", "x", "--topic", "o"], "--from takes the tasks from the file alone."),
        (["--delay", "soon"], "'--delay': soon: expected a duration, like 15, 500ms, 15s, 10m, 2h or 7d"),
        (["--ttl", "11000d"], "'--ttl': 11000d: expected a duration of at most ten years"),
        (["--header", "hunter2"], "expected 'Name: value'"),
        (["--header", "A: hunter2", "--header", "a: hunter2"], "a is given twice"),
    ],
)
def test_wrong_usage_of_create(arguments: list[str], said: str, capsys: Capture) -> None:
    assert status_of("create", *arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "hunter2" not in err


CREATE = ("create", "--topic", "o", "--callback", "http://a/")


def test_a_refusal_is_told_in_the_servers_words(api: Api, capsys: Capture) -> None:
    api.replies = [problem(400, "delay: expected a number of seconds ≥ 0,\n got -5")]
    assert status_of(*CREATE) == 1
    assert capsys.readouterr() == ("", "later: delay: expected a number of seconds ≥ 0, got -5\n")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(502, b"<html>"), "{url} answered 502 Bad Gateway"),
        (Reply(302, b""), "{url} answered 302 Found"),
        (Reply(200, b"<html>"), "{url} answered no JSON: is it later that answers there?"),
        (Reply(200, [1]), "the answer is no JSON object: is it later that answers there?"),
        (Reply(200, {"id": "x"}, lost=True), "{url} did not answer: IncompleteRead(11 bytes read, 1 more expected)"),
    ],
)
def test_an_answer_that_is_none_of_laters(api: Api, reply: Reply, said: str, capsys: Capture) -> None:
    api.replies = [reply]
    assert status_of(*CREATE) == 1
    assert capsys.readouterr().err == f"later: {said.format(url=api.url)}\n"


def test_nobody_listening_is_one_line(capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert status_of(*CREATE, "--url", f"http://127.0.0.1:{port}") == 1
    assert capsys.readouterr().err == f"later: http://127.0.0.1:{port} did not answer: Connection refused\n"


def test_an_answer_that_does_not_come_is_waited_for_no_longer_than_asked(capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert status_of(*CREATE, "--url", url, "--wait", "0.1") == 1
    assert capsys.readouterr().err == f"later: {url} did not answer within 0.1 s\n"


def test_proxies_of_the_environment_are_not_used(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    api.replies = [Reply(200, {"id": "n1"})]
    assert status_of(*CREATE) == 0


# Query and delete


TASK = {"id": "n1", "topic": "order", "state": "delay", "content": "a\x1b[2J\nb", "last_error": None, "attempts": 0}


def test_query_prints_a_field_a_line_fit_for_a_terminal(api: Api, capsys: Capture) -> None:
    api.replies = [Reply(200, TASK)]
    assert status_of("query", "n1") == 0
    assert capsys.readouterr().out.splitlines() == [
        "id            n1",
        "topic         order",
        "state         delay",
        "content       a\\x1b[2J\\nb",
        "attempts      0",
        "",
    ]


def test_query_prints_one_json_object_a_line(api: Api, capsys: Capture) -> None:
    api.replies = [Reply(200, TASK), Reply(200, TASK)]
    assert status_of("query", "--json", "n1", "n1") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [TASK, TASK]


@pytest.mark.parametrize("command", ["query", "delete"])
def test_an_id_that_is_not_there_is_one_line_and_status_1_and_holds_up_no_other(
    command: str, api: Api, capsys: Capture
) -> None:
    api.replies = [problem(404, "no task has the id 'x'"), Reply(200, {"id": "n1"})]
    assert status_of(command, "x", "n1") == 1
    out, err = capsys.readouterr()
    assert err == "later: no task has the id 'x'\n"
    assert "n1" in out
    assert [(request.path, request.json) for request in api.requests] == [
        (f"/{command}", {"id": "x"}),
        (f"/{command}", {"id": "n1"}),
    ]


def test_a_store_that_is_away_ends_a_query(api: Api, capsys: Capture) -> None:
    api.replies = [problem(503, "the store is away")]
    assert status_of("query", "a", "b") == 1
    assert capsys.readouterr().err == "later: the store is away\n"
    assert len(api.requests) == 1


# Topics and namespaces


COUNTS = {"delay": 2, "unack": 0, "error": 1, "dead": 0, "due": 1, "oldest_lateness_s": 150.5}
APPLIED = {name: {"value": value, "level": "daemon"} for name, value in written(DEFAULT).items()}
APPLIED["max_delay"] = {"value": 900, "level": "namespace"}


def asked(api: Api) -> list[tuple[str, str]]:
    return [(request.method, request.path) for request in api.requests]


def a_page(*topics: str, cursor: str | None = None) -> Reply:
    return Reply(200, {"topics": [{"topic": topic, **COUNTS} for topic in topics], "cursor": cursor})


def test_topics_are_listed_page_by_page(api: Api, capsys: Capture) -> None:
    api.replies = [a_page("order", "ä\x1b", cursor="x/1"), a_page("shop/mail")]
    assert status_of("topics", "list", "--namespace", "a/ü") == 0
    assert capsys.readouterr().out.splitlines() == [
        "topic      delay  unack  error  dead  due  oldest late by",
        "order          2      0      1     0    1           3 min",
        "ä\\x1b          2      0      1     0    1           3 min",
        "shop/mail      2      0      1     0    1           3 min",
    ]
    assert asked(api) == [
        ("GET", "/topics?limit=1000&namespace=a%2F%C3%BC"),
        ("GET", "/topics?limit=1000&namespace=a%2F%C3%BC&cursor=x%2F1"),
    ]


def test_no_more_topics_are_listed_than_asked_for(api: Api, capsys: Capture) -> None:
    api.replies = [a_page("a", "b", cursor="b"), a_page("a", "b"), a_page("a", "b", cursor="b")]
    assert status_of("topics", "list", "--limit", "1") == 0
    assert capsys.readouterr().out.splitlines()[2:] == ["… and more"]
    assert status_of("topics", "list", "--limit", "2") == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert status_of("topics", "list", "--limit", "2", "--json") == 0
    assert [json.loads(line)["topic"] for line in capsys.readouterr().out.splitlines()] == ["a", "b"]
    assert len(api.requests) == 3


def test_a_topic_is_shown_with_what_it_sets(api: Api, capsys: Capture) -> None:
    topic = {"topic": "shop/order", "namespace": "shop", **COUNTS, "policy": written(DEFAULT)}
    own = {"max_delay": 0, "retry_base": 0.5, "ttl": 5400, "delays": False, "rate": 2.5, "new_in_2030": [1]}
    api.replies = [Reply(200, topic), Reply(200, own)] * 2
    assert status_of("topics", "show", "shop/order") == 0
    assert capsys.readouterr().out.splitlines() == [
        "topic       delay  unack  error  dead  due  oldest late by",
        "shop/order      2      0      1     0    1           3 min",
        "",
        "field        value",
        "max_delay    0 (no limit)",
        "retry_base   500ms",
        "ttl          90m",
        "delays       off",
        "rate         2.5/s",
        "new_in_2030  [1]",
    ]
    assert status_of("topics", "show", "shop/order", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"topic": "shop/order", "namespace": "shop", **COUNTS, "set": own}
    assert asked(api) == [("GET", "/topics/shop%2Forder"), ("GET", "/topics/shop%2Forder/policy")] * 2


def test_a_topic_is_shown_with_all_that_applies_and_where_from(api: Api, capsys: Capture) -> None:
    api.replies = [Reply(200, {"topic": "order", **COUNTS, "policy": {}}), Reply(200, APPLIED)]
    assert status_of("topics", "show", "order", "--applied") == 0
    table = capsys.readouterr().out.partition("\n\n")[2].splitlines()
    assert table[:4] == [
        "field          value         from",
        "default_delay  0s            daemon",
        "max_delay      15m           namespace",
        "delay_mode     honor         daemon",
    ]
    assert [line.split()[0] for line in table[1:]] == list(FIELDS)
    assert asked(api)[1] == ("GET", "/topics/order/policy?applied=true")


def test_a_namespace_is_shown(api: Api, capsys: Capture) -> None:
    api.replies = [Reply(200, {}), Reply(200, {"retry": 5}), Reply(200, APPLIED)]
    assert status_of("namespaces", "show", "shop") == 0
    assert status_of("namespaces", "show", "shop", "--json") == 0
    assert status_of("namespaces", "show", "shop", "--json", "--applied") == 0
    nothing, own, applied = capsys.readouterr().out.splitlines()
    assert nothing == "nothing is set for the namespace shop: all fields are inherited"
    assert json.loads(own) == {"namespace": "shop", "set": {"retry": 5}}
    assert json.loads(applied) == {"namespace": "shop", "applied": APPLIED}


GIVEN = {
    "default_delay": ("1.5m", 90), "max_delay": ("7d", 604_800), "delay_mode": ("queue", "queue"),
    "delays": ("off", False), "ttl": ("0", 0), "timeout": ("500ms", 0.5), "retry": ("-1", -1), "retry_base": ("15", 15),
    "retry_cap": ("2h", 7200), "retry_jitter": ("0.2", 0.2), "ack": ("status", "status"), "rate": ("50/s", 50),
    "concurrency": ("7", 7), "paused": ("on", True), "ramp": ("0s", 0), "dead_keep": ("30d", 2_592_000),
}  # fmt: skip


def the_option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def test_set_sends_each_field_in_the_units_of_the_api(api: Api, capsys: Capture) -> None:
    api.replies = [Reply(200, {"ttl": 0})]
    assert list(GIVEN) == list(FIELDS)
    assert (
        status_of("topics", "set", "a", *(word for f, (text, _) in GIVEN.items() for word in (the_option(f), text)))
        == 0
    )
    assert asked(api) == [("PATCH", "/topics/a/policy")]
    assert api.requests[0].json == {field: sent for field, (_, sent) in GIVEN.items()}
    assert capsys.readouterr().out.splitlines() == ["field  value", "ttl    0 (no limit)"]


def test_set_sends_what_is_given_and_nothing_else(api: Api, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("LATER_TIMEOUT", "20s")
    api.replies = [Reply(200, {"delays": False})]
    assert status_of("namespaces", "set", "shop", "--delays", "off", "--json") == 0
    assert [(request.method, request.path, request.json) for request in api.requests] == [
        ("PATCH", "/namespaces/shop/policy", {"delays": False})
    ]
    assert json.loads(capsys.readouterr().out) == {"namespace": "shop", "set": {"delays": False}}


@pytest.mark.parametrize("group", ["topics", "namespaces"])
def test_unset_inherits_the_fields_named_or_removes_all(group: str, api: Api, capsys: Capture) -> None:
    api.replies = [Reply(200, {"retry": 5}), Reply(200, {})]
    assert status_of(group, "unset", "x", "--max-delay", "--ack", "--json") == 0
    assert status_of(group, "unset", "x") == 0
    some, everything = api.requests
    assert (some.method, some.path, some.json) == ("PATCH", f"/{group}/x/policy", {"max_delay": None, "ack": None})
    assert (everything.method, everything.path, everything.body) == ("DELETE", f"/{group}/x/policy", b"")
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
def test_a_name_is_percent_encoded(name: str, path: str, api: Api) -> None:
    api.replies = [Reply(200, {})]
    assert status_of("topics", "unset", name) == 0
    assert asked(api) == [("DELETE", f"/topics/{path}/policy")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topics"], "Usage: later topics"),
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
def test_wrong_usage_of_topics(arguments: list[str], said: str, api: Api, capsys: Capture) -> None:
    assert status_of(*arguments) == 2
    assert said in capsys.readouterr().err
    assert api.requests == []


def test_a_wrong_value_is_told_in_the_daemons_words(api: Api, capsys: Capture) -> None:
    api.replies = [problem(400, "timeout: expected a number of seconds from 1 to 120, got 500")]
    assert status_of("topics", "set", "order", "--timeout", "500s") == 1
    assert capsys.readouterr() == ("", "later: timeout: expected a number of seconds from 1 to 120, got 500\n")


@pytest.mark.parametrize("arguments", [("topics", "list"), ("topics", "show", "a"), ("topics", "unset", "a")])
def test_topics_of_something_else_than_later(arguments: tuple[str, ...], api: Api, capsys: Capture) -> None:
    api.replies = [Reply(200, [])]
    assert status_of(*arguments) == 1
    assert capsys.readouterr() == ("", "later: the answer is no JSON object: is it later that answers there?\n")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (0.5, "500ms"), (1.5, "1500ms"), (90, "90s"), (900, "15m"), (5400, "90m"), (7200, "2h"),
     (604_800, "7d"), (3_155_760_000, "36525d")],
)  # fmt: skip
def test_a_fields_duration_is_shown_as_it_can_be_given(seconds: float, shown: str) -> None:
    assert policy_options.format_field("timeout", seconds) == shown


# List


ERROR = {"reason": "status", "status": 503, "message": "answered 503", "at": "2027-01-15T08:00:00.000Z"}


def a_found(id: str, **changes: Any) -> dict[str, Any]:
    due = {"due_at": "2027-01-15T08:00:00.000Z"}
    return {"id": id, "topic": "order", "callback": "http://a/", "attempts": 0, "last_error": None, **due, **changes}


def a_dead(id: str, reason: str = "exhausted", **error: Any) -> dict[str, Any]:
    died = "2027-01-15T09:00:00.000Z"
    return {"id": id, "topic": "order", "attempts": 4, "last_error": {**ERROR, "reason": reason, **error},
            "died_at": died}  # fmt: skip


def found(*tasks: dict[str, Any], cursor: str | None = None) -> Reply:
    return Reply(200, {"tasks": list(tasks), "cursor": cursor})


def test_tasks_are_listed_page_by_page_up_to_the_limit(api: Api, capsys: Capture) -> None:
    api.replies = [
        found(a_found("n1"), a_found("n2\x1b", attempts=1, last_error=ERROR), cursor="c"),
        found(a_found("n3", callback=None), a_found("n4"), cursor="d"),
    ]
    assert status_of("list", "order", "--state", "error", "--limit", "3") == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "id      next try                  attempts  last error            callback",
        "n1      2027-01-15T08:00:00.000Z  0         -                     http://a/",
        "n2\\x1b  2027-01-15T08:00:00.000Z  1         status: answered 503  http://a/",
        "n3      2027-01-15T08:00:00.000Z  0         -                     -",
    ]
    assert err == "later: these are the first 3; use --limit to list more\n"
    asked_first = {"topic": "order", "state": "error", "due_after": None, "due_before": None, "limit": 4}
    assert [(request.path, request.json) for request in api.requests] == [
        ("/list", asked_first),
        ("/list", {**asked_first, "cursor": "c"}),
    ]


def test_a_list_is_one_json_object_a_line(api: Api, capsys: Capture) -> None:
    tasks = [a_found("n1"), a_found("n2")]
    api.replies = [found(*tasks)]
    assert status_of("list", "order", "--json", "--due-after", "1800000000", "--due-before", "2027-01-16T00:00Z") == 0
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == tasks
    assert err == ""
    assert api.requests[0].json == {
        "topic": "order", "state": "delay", "due_after": 1_800_000_000, "due_before": 1_800_057_600, "limit": 51,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("state", "header"), [("delay", "due"), ("unack", "lease ends"), ("error", "next try"), ("dead", "died")]
)
def test_a_list_says_what_its_times_are(state: str, header: str, api: Api, capsys: Capture) -> None:
    api.replies = [found()]
    assert status_of("list", "order", "--state", state) == 0
    assert capsys.readouterr().out == f"id  {header}  attempts  last error  callback\n"


NOW_S = 1_800_000_000.5


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr("later.cli.times.time.time", lambda: NOW_S)
    return NOW_S


@pytest.mark.parametrize(
    ("text", "due", "died"),
    [
        ("10m", NOW_S + 600, NOW_S - 600),
        ("0s", NOW_S, NOW_S),
        ("250ms", NOW_S + 0.25, NOW_S - 0.25),
        ("1800000000.25", 1_800_000_000.25, 1_800_000_000.25),
        ("2027-01-15T08:00:00Z", 1_800_000_000, 1_800_000_000),
        ("2027-01-15T08:00:00.5Z", 1_800_000_000.5, 1_800_000_000.5),
        ("2027-01-15 09:00:00+01:00", 1_800_000_000, 1_800_000_000),
    ],
)
def test_moments(text: str, due: float, died: float, now: float, api: Api) -> None:
    api.replies = [found(), found()]
    assert status_of("list", "order", "--due-before", text) == 0
    assert status_of("dead", "list", "order", "--died-after", text) == 0
    assert [request.json[name] for request, name in zip(api.requests, ("due_before", "due_after"), strict=True)] == [
        due,
        died,
    ]


def test_what_was_due_ten_minutes_ago(now: float, api: Api) -> None:
    api.replies = [found()]
    assert status_of("list", "order", "--due-before", "-10m") == 0
    assert api.requests[0].json["due_before"] == NOW_S - 600


@pytest.mark.parametrize("text", ["", "3600", "1800000000000", "nan", "soon", "s", "2027-01-15", "2027-01-15T08:00:00",
                                  "-1800000000", "9999-99-99T00:00:00Z", "--10m"])  # fmt: skip
def test_a_moment_that_is_none(text: str, api: Api, capsys: Capture) -> None:
    assert status_of("list", "order", "--due-before", text) == 2
    assert status_of("dead", "purge", "--topic", "order", "--died-before", text, "--yes") == 2
    due, died = (line for line in capsys.readouterr().err.splitlines() if line.startswith("Error:"))
    assert due.endswith(f": {text}: expected a time, like 2027-01-15T08:00:00Z, 1800000000, 10m or -10m")
    assert died.endswith(f": {text}: expected a time, like 2027-01-15T08:00:00Z, 1800000000 or 2h")
    assert api.requests == []


def test_the_dead_are_listed_with_what_they_died_of(now: float, api: Api, capsys: Capture) -> None:
    api.replies = [
        found(a_dead("n1"), a_dead("n2", "gone", status=410, message="answered 410"), cursor="c"),
        found(a_dead("n3", "expired", status=None, message="its ttl ended")),
    ]
    assert status_of("dead", "list", "order", "--died-before", "2h") == 0
    assert capsys.readouterr().out.splitlines() == [
        "id  died                      attempts  reason     status  message",
        "n1  2027-01-15T09:00:00.000Z  4         exhausted  503     answered 503",
        "n2  2027-01-15T09:00:00.000Z  4         gone       410     answered 410",
        "n3  2027-01-15T09:00:00.000Z  4         expired    -       its ttl ended",
    ]
    assert api.requests[0].json == {
        "topic": "order", "state": "dead", "due_after": None, "due_before": NOW_S - 7200, "limit": 51,
    }  # fmt: skip


def test_the_dead_of_one_reason_are_looked_for_in_whole_pages(api: Api, capsys: Capture) -> None:
    api.replies = [found(a_dead("n1"), a_dead("n2", "gone"), cursor="c"), found(a_dead("n3"), a_dead("n4", "gone"))]
    assert status_of("dead", "list", "order", "--reason", "gone", "--limit", "2", "--json") == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["n2", "n4"]
    assert err == ""
    assert api.requests[0].json["limit"] == 500


# Explain, update, run-now, and the dead one by one


EXPLAINED = {
    "sentence": "its topic is paused; due since 4 s\x1b", "id": "n1", "topic": "order", "due_in_s": -4.0,
    "oldest_lateness_s": 4.0, "expires_at": None, "counts": {"delay": 2, "dead": 0}, "paused": True,
    "policy": {"rate": 50, "concurrency": 0, "ttl": 5400, "delay_mode": "honor"}, "last_error": ERROR,
}  # fmt: skip


def test_an_explanation_is_a_sentence_and_its_figures(api: Api, capsys: Capture) -> None:
    api.replies = [Reply(200, EXPLAINED)]
    assert status_of("explain", "n1") == 0
    assert capsys.readouterr().out.splitlines() == [
        "its topic is paused; due since 4 s\\x1b",
        "",
        "id                n1",
        "topic             order",
        "due_in_s          -4.0",
        "oldest_lateness_s 4.0",
        "counts            delay 2, dead 0",
        "paused            true",
        "policy            rate 50/s, concurrency 0 (no limit), ttl 90m, delay_mode honor",
        "last_error        reason status, status 503, message answered 503, at 2027-01-15T08:00:00.000Z",
        "",
    ]


def test_a_task_or_a_topic_is_explained_as_json(api: Api, capsys: Capture) -> None:
    api.replies = [Reply(200, EXPLAINED)] * 2
    assert status_of("explain", "n1", "--json") == 0
    assert status_of("explain", "--topic", "order", "--json") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [EXPLAINED] * 2
    assert [(request.path, request.json) for request in api.requests] == [
        ("/explain", {"id": "n1"}),
        ("/explain", {"topic": "order"}),
    ]


def test_update_sends_what_is_given_and_shows_the_task(api: Api, capsys: Capture) -> None:
    Path("c").write_text("ü\n", "utf-8")
    api.replies = [Reply(200, TASK)] * 3
    assert status_of("update", "n1", "--delay", "10m", "--callback", "http://b/", "--header", "X-A: b", "--retry", "0",
                     "--ttl", "1h", "--content", "") == 0  # fmt: skip
    assert "state         delay" in capsys.readouterr().out
    assert status_of("update", "n1", "--execute-time", "1800000000.5", "--content-file", "c", "--json") == 0
    assert json.loads(capsys.readouterr().out) == TASK
    assert status_of("update", "n1", "--ttl", "0") == 0
    assert [(request.path, request.json) for request in api.requests] == [
        ("/update", {"id": "n1", "delay": 600, "callback": "http://b/", "headers": {"X-A": "b"}, "retry": 0,
                     "ttl": 3600, "content": ""}),
        ("/update", {"id": "n1", "execute_time": 1_800_000_000.5, "content": "ü\n"}),
        ("/update", {"id": "n1", "ttl": None}),
    ]  # fmt: skip


@pytest.mark.parametrize("command", [("run-now",), ("dead", "redrive")])
def test_tasks_that_cannot_be_hurried_are_one_line_and_hold_up_no_other(
    command: tuple[str, ...], api: Api, capsys: Capture
) -> None:
    api.replies = [problem(404, "no task has the id 'a'"), problem(409, "it is in flight"), Reply(200, {"redriven": 1})]
    assert status_of(*command, "a", "b", "c") == 1
    assert capsys.readouterr() == ("c\n", "later: no task has the id 'a'\nlater: it is in flight\n")
    assert [(request.path, request.json) for request in api.requests] == [
        (f"/{command[-1]}", {"id": id}) for id in "abc"
    ]


def test_hurried_tasks_are_json_objects_for_machines(api: Api, capsys: Capture) -> None:
    api.replies = [Reply(200, TASK), Reply(200, {"redriven": 1})]
    assert (status_of("run-now", "n1", "--json"), status_of("dead", "redrive", "n1", "--json")) == (0, 0)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [TASK, {"id": "n1", "redriven": 1}]


@pytest.mark.parametrize("paused", [True, False])
def test_a_topic_is_paused_and_resumed(paused: bool, api: Api, capsys: Capture) -> None:
    command = "pause" if paused else "resume"
    api.replies = [Reply(200, {"topic": "shop/order", "paused": paused})] * 2
    assert status_of("topics", command, "shop/order") == 0
    assert status_of("topics", command, "shop/order", "--json") == 0
    text, as_json = capsys.readouterr().out.splitlines()
    assert text == f"the topic shop/order is {'paused' if paused else 'not paused'}"
    assert json.loads(as_json) == {"topic": "shop/order", "paused": paused}
    assert asked(api) == [("POST", f"/topics/shop%2Forder/{command}")] * 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list"], "Missing argument 'TOPIC'."),
        (["list", "order", "--state", "done"], "'done' is not one of 'delay', 'unack', 'error', 'dead'."),
        (["list", "order", "--limit", "0"], "0 is not in the range 1<=x<=1000000000."),
        (["explain"], "Either an ID or --topic."),
        (["explain", "n1", "--topic", "order"], "Either an ID or --topic."),
        (["update", "n1"], "Nothing to change: give at least one option, as in --delay 10m."),
        (["update", "n1", "--json"], "Nothing to change"),
        (["update", "n1", "--content", "a", "--content-file", "b"], "Either --content or --content-file."),
        (["update", "n1", "--delay", "soon"], "'--delay': soon: expected a duration"),
        (["run-now"], "Missing argument 'ID...'."),
        (["dead", "list"], "Missing argument 'TOPIC'."),
        (["dead", "list", "order", "--reason", "status"], "'status' is not one of 'exhausted', 'gone',"),
        (["dead", "redrive"], "Either IDs or --topic."),
        (["dead", "redrive", "n1", "--topic", "order"], "Either IDs or --topic."),
        (["dead", "redrive", "n1", "--reason", "gone"], "--rate and --dry-run go with --topic."),
        (["dead", "redrive", "n1", "--dry-run"], "--rate and --dry-run go with --topic."),
        (["dead", "redrive", "--topic", "order", "--rate", "0"], "--rate: expected more than 0 a second."),
        (["dead", "redrive", "--topic", "order", "--rate", "fast"], "fast: expected a number, like 50, 0.5 or 50/s"),
        (["dead", "purge"], "Missing option '--topic'."),
        (["topics", "purge", "order", "--state", "unack"], "'unack' is not one of 'delay', 'error', 'dead'."),
        (["topics", "pause"], "Missing argument 'TOPIC'."),
    ],
)
def test_wrong_usage_of_what_is_for_tasks(arguments: list[str], said: str, api: Api, capsys: Capture) -> None:
    assert status_of(*arguments) == 2
    assert said in capsys.readouterr().err
    assert api.requests == []


# Many tasks


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


def typing(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(text))


HELD = Reply(200, {"topic": "order", "delay": 1000, "unack": 7, "error": 4, "dead": 200})
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
def test_what_is_about_many_asks_first_and_no_is_the_default(
    command: tuple[str, ...], question: str, answer: str, api: Api, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    typing(monkeypatch, answer)
    api.replies = [HELD]
    assert status_of(*command) == 1
    done = "redriven" if "redrive" in command else "purged"
    assert capsys.readouterr() == ("", f"{question}later: nothing was {done}\n")
    assert asked(api) == [("GET", "/topics/order")]


@pytest.mark.parametrize("command", [PURGE_TOPIC, PURGE_DEAD, REDRIVE])
def test_a_question_that_is_not_answered_does_nothing(
    command: tuple[str, ...], api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    typing(monkeypatch, "")
    api.replies = [HELD]
    assert status_of(*command) == 130
    assert asked(api) == [("GET", "/topics/order")]


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
def test_yes_is_carried_out(
    command: tuple[str, ...],
    path: str,
    sent: dict[str, Any],
    now: float,
    api: Api,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = "redriven" if "redrive" in command else "purged"
    typing(monkeypatch, "y\n")
    api.replies = [HELD, Reply(200, {done: 1})]
    assert status_of(*command) == 0
    assert capsys.readouterr().out == f"1 task {done}\n"
    assert (api.requests[1].path, api.requests[1].json) == (path, {**sent, "limit": 200 if "rate" in sent else 5000})


@pytest.mark.parametrize("command", [PURGE_TOPIC, PURGE_DEAD, REDRIVE])
def test_without_a_terminal_it_is_refused_unless_yes_is_said(
    command: tuple[str, ...], api: Api, capsys: Capture
) -> None:
    assert status_of(*command) == 2
    verb = "redrive" if "redrive" in command else "purge"
    assert capsys.readouterr().err.endswith(
        f"\nError: There is no terminal to ask on: --yes to {verb} unasked, --dry-run to see how many.\n"
    )
    assert api.requests == []
    api.replies = [Reply(200, {"redriven": 0, "purged": 0})]
    assert status_of(*command, "--yes") == 0
    assert [request.method for request in api.requests] == ["POST"]


@pytest.mark.parametrize("command", [PURGE_TOPIC, PURGE_DEAD, REDRIVE])
def test_nothing_to_do_is_not_asked_about(
    command: tuple[str, ...], api: Api, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    typing(monkeypatch, "y\n")
    api.replies = [Reply(200, {"topic": "order", "delay": 0, "unack": 7, "error": 0, "dead": 0})]
    assert status_of(*command) == 0
    assert capsys.readouterr() == (f"0 tasks {'redriven' if 'redrive' in command else 'purged'}\n", "")


def test_a_dry_run_says_how_many_and_does_nothing(api: Api, capsys: Capture) -> None:
    api.replies = [HELD] * 3
    assert status_of(*PURGE_TOPIC, "--dry-run", "--yes") == 0
    assert status_of(*PURGE_DEAD, "--dry-run") == 0
    assert status_of(*REDRIVE, "--dry-run", "--json") == 0
    topic, dead, as_json = capsys.readouterr().out.splitlines()
    assert topic == "1,204 tasks of the topic order (delay 1,000, error 4, dead 200)"
    assert dead == "200 dead tasks of the topic order"
    assert json.loads(as_json) == {"topic": "order", "tasks": 200, "states": {"dead": 200}}
    assert asked(api) == [("GET", "/topics/order")] * 3


def test_the_dead_that_filters_leave_are_counted_one_by_one(now: float, api: Api, capsys: Capture) -> None:
    api.replies = [HELD, found(a_dead("n1"), a_dead("n2", "gone"), cursor="c"), found(a_dead("n3"))]
    filters = ("--reason", "exhausted", "--died-after", "2h", "--died-before", "2027-01-15T08:00:00Z")
    assert status_of(*REDRIVE, *filters, "--dry-run") == 0
    assert capsys.readouterr().out == (
        "2 dead tasks of the topic order (reason exhausted, died after 2027-01-15T06:00:00Z, "
        "died before 2027-01-15T08:00:00Z)\n"
    )
    assert api.requests[1].json == {
        "topic": "order", "state": "dead", "due_after": NOW_S - 7200, "due_before": 1_800_000_000, "limit": 500,
    }  # fmt: skip


@pytest.mark.parametrize(("asked_for", "sent"), [("1h", NOW_S - 3600), ("2028-01-01T00:00:00Z", NOW_S)])
def test_filters_are_sent_and_nobody_is_taken_who_died_since(asked_for: str, sent: float, now: float, api: Api) -> None:
    api.replies = [Reply(200, {"redriven": 0}), Reply(200, {"purged": 0})]
    filters = ("--reason", "gone", "--died-after", "2h", "--died-before", asked_for, "--yes")
    assert (status_of(*REDRIVE, *filters), status_of(*PURGE_DEAD, *filters)) == (0, 0)
    expected = {"died_after": NOW_S - 7200, "died_before": sent, "reason": "gone", "limit": 5000}
    assert [request.json for request in api.requests] == [
        {"topic": "order", **expected},
        {"states": ["dead"], **expected},
    ]


def test_many_go_in_slices_of_the_same_moment_until_there_are_no_more(api: Api, capsys: Capture) -> None:
    more = Reply(200, {"redriven": 5000, "more": True})
    api.replies = [more, more, Reply(200, {"redriven": 17})]
    assert status_of(*REDRIVE, "--yes") == 0
    assert capsys.readouterr() == ("10,017 tasks redriven\n", "")
    first, *others = [request.json for request in api.requests]
    assert others == [first] * 2


def test_slices_come_to_an_object_for_machines(api: Api, capsys: Capture) -> None:
    api.replies = [Reply(200, {"purged": 5000, "more": True}), Reply(200, {"purged": 1})]
    assert status_of(*PURGE_TOPIC, "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"purged": 5001, "exact": True}


def test_an_answer_that_never_ends_ends(api: Api) -> None:
    api.replies = [Reply(200, {"purged": 0, "more": True})]
    assert status_of(*PURGE_TOPIC, "--yes") == 0
    assert len(api.requests) == 1


def test_a_slice_whose_answer_was_lost_is_asked_for_again(api: Api, pauses: list[float], capsys: Capture) -> None:
    api.replies = [
        Reply(200, {"purged": 5000, "more": True}),
        problem(503, "the store is away", "7"),
        Reply(200, {"purged": 5000}, lost=True),
        Reply(200, {"purged": 204}),
    ]
    assert status_of(*PURGE_TOPIC, "--yes") == 0
    out, err = capsys.readouterr()
    assert out == "at least 5,204 tasks purged: what was done by calls without an answer is not counted\n"
    assert err.splitlines()[0] == "later: the store is away; trying again in 7 s"
    assert pauses == [7, 2]
    assert len({request.body for request in api.requests}) == 1


def test_a_slice_that_does_not_get_through_ends_it_and_says_how_to_go_on(
    api: Api, pauses: list[float], capsys: Capture
) -> None:
    api.replies = [Reply(200, {"purged": 5000, "more": True}), problem(503, "away"), problem(503, "away")]
    assert status_of(*PURGE_TOPIC, "--yes", "--retries", "1") == 1
    out, err = capsys.readouterr()
    assert out.startswith("at least 5,000 tasks purged")
    assert err.splitlines()[1:] == ["later: the same command goes on with the rest", "later: away"]
    assert pauses == [1]


@pytest.mark.parametrize("status", [400, 404, 405])
def test_what_is_refused_is_not_asked_for_again(status: int, api: Api, pauses: list[float], capsys: Capture) -> None:
    api.replies = [problem(status, "no")]
    assert status_of(*REDRIVE, "--yes") == 1
    assert capsys.readouterr() == ("", "later: no\n")
    assert pauses == []


def test_whoever_stops_it_is_told_what_was_done(api: Api, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("later.cli.commands.mass.time.sleep", stop)
    api.replies = [Reply(200, {"redriven": 200, "more": True})]
    assert status_of(*REDRIVE, "--yes", "--rate", "20") == 130
    assert capsys.readouterr() == ("200 tasks redriven\n", "later: the same command goes on with the rest\n\n")


@pytest.mark.parametrize(
    ("rate", "limit", "pause"), [("20", 200, 10), ("0.01", 1, 100), ("600", 5000, 8.333), ("1e6", 5000, 0.005)]
)
def test_a_rate_is_kept_over_slices(rate: str, limit: int, pause: float, api: Api, pauses: list[float]) -> None:
    api.replies = [Reply(200, {"redriven": limit, "more": True}), Reply(200, {"redriven": 1})]
    assert status_of(*REDRIVE, "--yes", "--rate", rate) == 0
    assert [request.json["limit"] for request in api.requests] == [limit] * 2
    assert pauses == [pytest.approx(pause, abs=0.5)]


def test_with_a_rate_a_slice_whose_answer_was_lost_may_be_under_way(api: Api, pauses: list[float]) -> None:
    api.replies = [Reply(200, {"redriven": 200}, lost=True), Reply(200, {"redriven": 1})]
    assert status_of(*REDRIVE, "--yes", "--rate", "20") == 0
    assert pauses == [10]


def test_a_bar_goes_with_the_slices_on_a_terminal(api: Api, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    typing(monkeypatch, "y\n")
    api.replies = [HELD, Reply(200, {"purged": 1000, "more": True}), Reply(200, {"purged": 204})]
    assert status_of(*PURGE_TOPIC) == 0
    out, err = capsys.readouterr()
    assert out == "1,204 tasks purged\n"
    assert "/1204" in err


# A file of tasks


def create_from(*arguments: str) -> int:
    return status_of("create", "--from", *arguments)


def test_a_file_goes_in_batches_and_is_counted(api: Api, capsys: Capture) -> None:
    api.known = {"n2"}
    assert create_from(a_file(*tasks(5)), "--batch", "2", "--job", "j:1") == 0
    assert capsys.readouterr() == ("4 created, 1 existing, 0 refused, 0 failed\n", "")
    assert [len(request.lines) for request in api.requests] == [2, 2, 1]
    assert api.requests[0].path == "/create/batch?job=j%3A1"
    assert api.requests[0].headers["Content-Type"] == "application/x-ndjson"
    assert [line for request in api.requests for line in request.lines] == tasks(5)


def test_a_line_without_an_id_gets_one_and_is_otherwise_left_as_it_is(api: Api) -> None:
    assert create_from(a_file('{"topic": "o", "delay": 1.50, "id": null}', '{"topic":"o"}')) == 0
    first, second = api.requests[0].lines
    assert b'"delay":1.50' in api.requests[0].body
    assert len({first["id"], second["id"]}) == 2
    assert len(first["id"]) == 36


def test_standard_input_blank_lines_windows_ends_and_a_byte_order_mark(
    api: Api, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    text = b'\xef\xbb\xbf{"topic":"o","id":"a"}\r\n\r\n   \n{"topic":"o","id":"b"}'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert create_from("-", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"created": 2, "existing": 0, "refused": 0, "failed": 0}
    assert [line["id"] for line in api.requests[0].lines] == ["a", "b"]


def test_refused_lines_are_told_by_number_and_cost_the_others_nothing(api: Api, capsys: Capture) -> None:
    good, bad = tasks(1)[0], {"topic": "bad", "id": "x"}
    assert create_from(a_file(good, bad, "nonsense", "[1]", {"topic": "o"})) == 1
    out, err = capsys.readouterr()
    assert out == "2 created, 0 existing, 3 refused, 0 failed\n"
    assert sorted(err.splitlines()) == [
        "later: line 2: topic: expected a good one",
        "later: line 3: expected a JSON object: JSON is malformed: invalid character (byte 4)",
        "later: line 4: expected a JSON object: Expected `object`, got `array`",
    ]


def test_only_the_first_refusals_are_told_one_by_one(api: Api, capsys: Capture) -> None:
    assert create_from(a_file(*tasks(25, topic="bad"))) == 1
    *told, last = capsys.readouterr().err.splitlines()
    assert len(told) == 20
    assert last == "later: … and 5 more lines"


def test_a_busy_server_is_asked_again_when_it_said(api: Api, pauses: list[float], capsys: Capture) -> None:
    api.replies = [problem(503, "the store is away", "7"), problem(429, "too many"), problem(503, "still", "9999")]
    assert create_from(a_file(*tasks(3))) == 0
    assert pauses == [7, 2, 60]
    out, err = capsys.readouterr()
    assert out == "3 created, 0 existing, 0 refused, 0 failed\n"
    assert err.splitlines()[0] == "later: the store is away; trying again in 7 s"
    assert [request.lines for request in api.requests] == [tasks(3)] * 4


def test_a_lost_answer_makes_nothing_twice(api: Api, pauses: list[float], capsys: Capture) -> None:
    api.replies = [lambda request: api.take(request)._replace(lost=True)]
    assert create_from(a_file({"topic": "o"}, {"topic": "o", "id": "mine"})) == 0
    first, second = api.requests
    assert first.body == second.body
    assert capsys.readouterr().out == "1 created, 1 existing, 0 refused, 0 failed\n"
    assert pauses == [1]


def test_items_that_failed_are_sent_again_alone(api: Api, pauses: list[float], capsys: Capture) -> None:
    away = {"error": {"status": 503, "detail": "a shard is away"}}
    api.replies = [
        Reply(200, {"results": [{"id": "n0", "created": True}, away, {"id": "n2", "created": True}]}),
        Reply(200, {"results": [away]}),
    ]
    assert create_from(a_file(*tasks(3))) == 0
    assert [[line["id"] for line in request.lines] for request in api.requests] == [["n0", "n1", "n2"], ["n1"], ["n1"]]
    assert capsys.readouterr().out == "3 created, 0 existing, 0 refused, 0 failed\n"
    assert pauses == [1, 2]


def test_items_that_keep_failing_are_counted_and_the_file_goes_on(
    api: Api, pauses: list[float], capsys: Capture
) -> None:
    away = Reply(200, {"results": [{"error": {"status": 503, "detail": "a shard is away"}}]})
    api.replies = [away, away]
    assert create_from(a_file(*tasks(2)), "--batch", "1", "--retries", "1") == 1
    out, err = capsys.readouterr()
    assert out == "1 created, 0 existing, 0 refused, 1 failed\n"
    assert err.splitlines()[-1] == "later: line 1: a shard is away"


def test_a_batch_that_does_not_get_through_ends_the_file(api: Api, pauses: list[float], capsys: Capture) -> None:
    api.replies = [api.take, problem(503, "full"), problem(503, "full")]
    assert create_from(a_file(*tasks(6)), "--batch", "2", "--retries", "1") == 1
    out, err = capsys.readouterr()
    assert out == "2 created, 0 existing, 0 refused, 2 failed\n"
    assert err.splitlines()[-1] == "later: lines 3 to 4: full (what follows was not sent)"
    assert len(api.requests) == 3


@pytest.mark.parametrize("reply", [problem(400, "job: no"), Reply(200, {"results": []}), Reply(200, b"x")])
def test_an_answer_that_will_not_change_is_not_asked_for_again(api: Api, reply: Reply, pauses: list[float]) -> None:
    api.replies = [reply]
    assert create_from(a_file(*tasks(2))) == 1
    assert (len(api.requests), pauses) == (1, [])


def test_a_file_that_is_not_there_is_one_line(capsys: Capture) -> None:
    assert create_from("none") == 1
    assert capsys.readouterr().err == "later: none: No such file or directory\n"


def test_a_line_too_long_for_a_request_is_skipped_without_being_read_whole() -> None:
    counted: list[int] = []
    file = io.BytesIO(b"x" * (2 * MAX_LINE_BYTES + 10) + b'\n{"id":"a"}\n')
    assert list(read_lines(file, counted.append)) == [
        Unfit(1, "the line is too long"),
        Line(2, b'{"id":"a"}', ours=False),
    ]
    assert sum(counted) == len(file.getvalue())


def test_large_lines_make_small_batches(api: Api) -> None:
    assert create_from(a_file(*tasks(3, content="x" * 5_000_000))) == 0
    assert [len(request.lines) for request in api.requests] == [1, 1, 1]


# Status


def a_survey(**changes: Any) -> status.StoreStatus:
    built = status.StoreStatus(
        address="unix:///s",
        shards=1,
        server=ServerFacts("Valkey", "9.1.2", 1536, 0, "appendonly"),
        workers={"host:1": 700, "host:2": 300_000},
        topics={
            "calm": TopicCounts(9, 0, 0, 0, 0, None),
            "late": TopicCounts(3, 1, 2, 4, 3, 4_000),
            "worse": TopicCounts(5, 0, 0, 0, 5, 10_000),
        },
        remembered=6,
        now=19_000,
    )
    return built._replace(**changes)


def test_status_shows_the_largest_backlog_first(capsys: Capture) -> None:
    status.print_text(a_survey(), 2)
    assert capsys.readouterr().out.splitlines() == [
        "store    Valkey 9.1.2 at unix:///s, 1 shard",
        "memory   1.5 KiB, no limit set",
        "writes   appendonly",
        "workers  1 alive",
        "         host:1: last heartbeat 0.7 s ago",
        "         host:2: last heartbeat 5 min ago, silent",
        "ids      6 of ended tasks remembered",
        "",
        "topic       delay  unack  error  dead  due  oldest late by",
        "all topics     17      1      2     4    8            15 s",
        "worse           5      0      0     0    5             9 s",
        "late            3      1      2     4    3            15 s",
        "… and 1 more",
    ]


def test_status_says_when_nobody_works(capsys: Capture) -> None:
    status.print_text(a_survey(workers={"host:2": 10_000}), 20)
    assert "workers  no worker heartbeat for 10 s: nothing is delivered" in capsys.readouterr().out
    status.print_json(a_survey(workers={}), 20)
    assert json.loads(capsys.readouterr().out)["warnings"] == [status.NO_WORKER]


def test_status_is_one_json_object_for_machines(capsys: Capture) -> None:
    status.print_json(a_survey(), 1)
    told = json.loads(capsys.readouterr().out)
    assert told["store"]["memory_bytes"] == 1536
    assert told["workers"][0] == {"instance": "host:1", "last_beat_s": 0.7, "alive": True}
    assert told["tasks"] == {
        "delay": 17, "unack": 1, "error": 2, "dead": 4, "due": 8, "oldest_lateness_s": 15.0, "total": 24,
    }  # fmt: skip
    assert [topic["topic"] for topic in told["topics"]] == ["worse"]
    assert (told["topics_total"], told["warnings"]) == (3, [])


def test_a_table_is_drawn_on_a_terminal_and_takes_no_markup(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    status.print_text(a_survey(topics={"[red]x\x1b": TopicCounts(1, 0, 0, 0, 0, None)}), 20)
    out = capsys.readouterr().out
    assert "[red]x\\x1b" in out
    assert "─" in out


def test_a_head_takes_no_markup_either(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    tables.print_number_table(["hour", "[/x]", "[red]y"], [["12:00", "1", "2"]])
    head = capsys.readouterr().out.splitlines()[0]
    assert "[/x]" in head
    assert "[red]y" in head


async def test_a_survey_reads_a_real_store(store: StoreFixture) -> None:
    now = (await store.now()).low
    await store.tasks.create([a_task(created_at=now), a_task(delay=60, created_at=now, topic="a/b")])
    await store.stats.heartbeat("host:1", now)
    found = await status.read_status(store, "unix:///s")
    assert found.total[:5] == (2, 0, 0, 0, 1)
    assert found.alive_workers == 1
    assert found.server.name in ("Valkey", "Redis")


@pytest.mark.parametrize(("count", "shown"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"),
                                              (5 * 1024**2, "5.0 MiB"), (3 * 1024**4, "3072.0 GiB")])  # fmt: skip
def test_a_size_is_shown_in_the_unit_that_fits(count: int, shown: str) -> None:
    assert tables.format_size(count) == shown


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_a_store_that_is_away_is_one_line_without_its_password(command: str, capsys: Capture) -> None:
    assert status_of(command, "--redis", f"unix://me:hunter2@{Path.cwd()}/none.sock") == 1
    err = capsys.readouterr().err
    assert err.startswith("later: the store cannot be reached: ")
    assert err.count("\n") == 1
    assert "hunter2" not in err


def test_whoever_forgets_the_data_directory_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    async def away(*options: object) -> None:
        raise StoreDown("the store cannot be reached")

    monkeypatch.setattr(store_access, "open_store", away)
    Path("later-data").mkdir()
    Path("later-data/store.sock").touch()
    assert status_of("status") == 1
    assert capsys.readouterr().err.endswith("(for the store of `later up`: --data later-data)\n")


# Doctor


async def test_a_healthy_store_is_status_0(store: StoreFixture, capsys: Capture) -> None:
    await store.tasks.create([a_task(), a_task()])
    assert await examine_store(store, repair=False, as_json=False) == 0
    assert capsys.readouterr().out == "2 tasks and 2 bucket entries read: nothing is wrong\n"


async def broken(store: StoreFixture) -> None:
    """Take one task out of its bucket."""
    await store.tasks.create([a_task(id="lost", own_id=True)])
    await store.redis.zrem(store.keys.shard_of("lost").bucket(Bucket.DELAY, b"order"), b"lost")


async def test_what_is_wrong_is_told_and_status_1_until_it_is_mended(store: StoreFixture, capsys: Capture) -> None:
    await broken(store)
    assert await examine_store(store, repair=False, as_json=False) == 1
    out = capsys.readouterr().out
    assert "'lost'" in out.splitlines()[0]
    assert out.endswith("wrong; --repair mends\n")
    assert await examine_store(store, repair=True, as_json=False) == 0
    assert "; mended\n" in capsys.readouterr().out
    assert await examine_store(store, repair=False, as_json=False) == 0


async def test_findings_are_json_objects_for_machines(store: StoreFixture, capsys: Capture) -> None:
    await broken(store)
    assert await examine_store(store, repair=True, as_json=True) == 0
    finding, *_, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert (finding["id"], finding["kind"], finding["topic"], finding["mended"]) == ("lost", "nowhere", "order", True)
    assert summary["tasks"] == 1
    assert summary["mended"] >= 1
