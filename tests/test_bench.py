"""The benchmark without measurements: results, reports, rows and options."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from subprocess import Popen

import pytest

from later.embedded import find_server
from later.store.scripts import MAX_TASKS
from scripts.bench import light_receiver, load_generator, plot
from scripts.bench.environment import QUICK, Environment
from scripts.bench.load import Load, run_load
from scripts.bench.options import parse_options
from scripts.bench.processes import Process
from scripts.bench.raw_script import CreateBatches, RawConnection
from scripts.bench.receivers import Receiver, run_light_receiver
from scripts.bench.report import Report, format_cells, format_json, format_markdown
from scripts.bench.results import (
    AlwaysZero,
    AtLeast,
    AtMost,
    BenchError,
    Contender,
    ContenderResult,
    NeverEarly,
    Row,
    RowResult,
    Sample,
    ShareOfReference,
    Target,
    percentile,
    spread,
)
from scripts.bench.rows import ROWS
from scripts.bench.rows.create import CREATE
from scripts.bench.rows.deliver import delivery_figures
from scripts.bench.rows.lateness import lateness_figures
from scripts.bench.rows.memory import CASES, Case, measure_memory
from scripts.bench.rows.sweep import SWEEP
from scripts.bench.runs import measure_row
from scripts.bench.stores import DURABILITIES, run_store

REFERENCE = "reference"


def an_environment(folder: Path, **sizes: float) -> Environment:
    """Return an environment without wrk and nginx, so that tests need neither."""
    return Environment(
        sizes=replace(QUICK, **sizes),  # type: ignore[arg-type] # every size is a number
        store_program=find_server(),
        durabilities=list(DURABILITIES),
        wrk=None,
        nginx=None,
        folder=folder,
    )


def no_measuring() -> Sample:
    raise BenchError("not to be measured")


def a_line(
    name: str, *samples: Sample, targets: tuple[Target, ...] = (), reference: str = "", store: str = ""
) -> ContenderResult:
    contender = Contender(name=name, measure=no_measuring, targets=targets, reference=reference, store=store)
    return ContenderResult(contender=contender, main_figure="rate", samples=list(samples))


def a_row(*contenders: Contender, figures: tuple[str, ...] = ("rate",)) -> Row:
    @contextmanager
    def all_of_them(environment: Environment) -> Iterator[list[Contender]]:
        yield list(contenders)

    return Row(
        name="row",
        title="what `later` does",
        target="fast",
        figures=figures,
        measured_elsewhere=["Later (Go): 5/s"],
        contenders=all_of_them,
    )


def a_report(*rows: RowResult) -> Report:
    return Report(
        at=datetime(2026, 11, 21, tzinfo=UTC),
        machine={"CPU": "one"},
        versions={"later": "0.1.0"},
        quick=False,
        missing=["wrk is not installed: it is slow"],
        rows=rows,
    )


def two_lines(*targets: Target) -> RowResult:
    reference = a_line(REFERENCE, {"rate": 1000.0}, {"rate": 2000.0}, {"rate": 4000.0})
    ours = a_line(
        "ours", {"rate": 1500.0}, {"rate": 1000.0}, {"rate": 1600.0}, targets=targets, reference=REFERENCE, store="none"
    )
    return RowResult(row=a_row(), lines=[reference, ours], runs=3)


# Results


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1), (1, 1), (50, 50), (50.5, 51), (99, 99), (99.1, 100), (100, 100)]
)
def test_a_percentile_is_by_nearest_rank(percent: float, value: float) -> None:
    assert percentile(range(1, 101), percent) == value


def test_a_spread_has_median_least_and_greatest() -> None:
    assert spread([3, 1, 2, 10]) == (2.5, 1, 10)


def test_a_ratio_compares_medians() -> None:
    measured = two_lines()
    assert measured.lines[1].ratio(measured.reference_of(measured.lines[1])) == 0.75


@pytest.mark.parametrize(
    ("target", "is_met"),
    [
        (ShareOfReference(0.75), True),
        (ShareOfReference(0.76), False),
        (AtLeast("rate", 1500), True),
        (AtLeast("rate", 1501), False),
        (AtMost("rate", 1500), True),
        (AtMost("rate", 1499), False),
    ],
)
def test_the_median_decides_whether_a_target_is_met(target: Target, is_met: bool) -> None:
    measured = two_lines(target)
    assert target.is_met(measured.lines[1], measured.lines[0]) is is_met


@pytest.mark.parametrize("target", [NeverEarly(), AlwaysZero("twice")])
def test_one_early_or_duplicate_delivery_misses_the_target(target: Target) -> None:
    good: Sample = {"earliest": 0.1, "twice": 0}
    bad: Sample = {"earliest": -0.1, "twice": 1}
    assert target.is_met(a_line("good", good, good, good), None) is True
    assert target.is_met(a_line("bad", good, bad, good), None) is False


def test_a_share_of_an_unmeasured_reference_is_unknown() -> None:
    assert ShareOfReference(0.5).is_met(a_line("ours", {"rate": 1.0}), a_line(REFERENCE)) is None


# Reports


def test_a_result_shows_median_spread_ratio_and_targets() -> None:
    measured = two_lines(ShareOfReference(0.8), AtLeast("rate", 1000))
    assert format_cells(measured, measured.lines[1]) == [
        "ours",
        "none",
        "1,500/s [1,000 to 1,600]",
        "",
        "0.75",
        "≥ 0.8 of the reference: missed, ≥ 1,000/s: met",
    ]


def test_a_skipped_or_failed_result_shows_the_reason() -> None:
    skipped = ContenderResult(
        contender=Contender(name="two", measure=no_measuring, skip_reason="no --processes"), main_figure="rate"
    )
    failed = a_line("one", targets=(ShareOfReference(0.5),))
    failed.failure = "failed: it ended"
    measured = RowResult(row=a_row(), lines=[skipped, failed], runs=1)
    assert format_cells(measured, skipped)[2] == "skipped: no --processes"
    assert format_cells(measured, failed)[2:] == ["failed: it ended", "", "", "≥ 0.5 of the reference: not measured"]


def test_markdown_has_one_table_and_the_facts_about_the_machine() -> None:
    text = format_markdown(a_report(two_lines(), two_lines()))
    table, facts = text.split("\n\n")
    assert {line.count("|") for line in table.splitlines()} == {7}
    assert "| **what `later` does** |  | medians of 3 runs |  |  | Later (Go): 5/s |" in table.splitlines()
    assert "| ours | none | 1,500/s [1,000 to 1,600] | 0.75 |  |  |" in table.splitlines()
    assert "wrk is not installed" in facts


def test_a_busy_machine_makes_the_report_unreliable() -> None:
    quiet, disturbed, unknown = (two_lines() for _ in range(3))
    quiet.other_processes_share, disturbed.other_processes_share = 0.01, 0.3
    texts = format_markdown(a_report(quiet, unknown)), format_markdown(a_report(quiet, disturbed))
    assert ["Unreliable: row; other processes took 30% of the machine." in text for text in texts] == [
        False,
        True,
    ]


def test_json_has_every_run_and_every_target() -> None:
    (row,) = json.loads(format_json(a_report(two_lines(ShareOfReference(0.8)))))["rows"]
    reference, ours = row["lines"]
    assert [run["rate"] for run in reference["runs"]] == [1000, 2000, 4000]
    assert ours["figures"]["rate"] == {"median": 1500, "least": 1000, "most": 1600}
    assert ours["targets"] == [{"text": "≥ 0.8 of the reference", "met": False}]


def test_the_plot_of_a_sweep_is_reproducible(tmp_path: Path) -> None:
    lines = [
        a_line("later up", {"asked": rate, "p50": 2.0, "p99": 9.0}, store=store)
        for store in ("none", "always")
        for rate in (100.0, 1000.0)
    ]
    for file in ("one.svg", "two.svg"):
        plot.draw(RowResult(row=SWEEP, lines=lines), tmp_path / file)
    one, two = ((tmp_path / file).read_text() for file in ("one.svg", "two.svg"))
    assert one == two
    assert "p99, appendfsync always" in one


def test_a_sweep_that_failed_is_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(BenchError):
        plot.draw(RowResult(row=SWEEP, lines=[a_line("later up")]), tmp_path / "none.svg")


# Runs


def counting(name: str, order: list[str], fails_at: int = 0) -> Contender:
    def measured() -> Sample:
        order.append(name)
        if len([one for one in order if one == name]) == fails_at:
            raise BenchError("it ended")
        return {"rate": 1.0}

    return Contender(name=name, measure=measured)


def test_contenders_take_turns(tmp_path: Path) -> None:
    order: list[str] = []
    measure_row(a_row(counting("a", order), counting("b", order)), an_environment(tmp_path), 2, lambda text: None)
    assert order == ["a", "b", "a", "b"]


def test_a_failed_contender_shows_the_reason_and_the_others_continue(tmp_path: Path) -> None:
    order: list[str] = []
    row = a_row(counting("a", order, fails_at=2), counting("b", order))
    measured = measure_row(row, an_environment(tmp_path), None, lambda text: None)
    assert order == ["a", "b", "a", "b", "b"]
    assert measured.failed
    assert [line.failure for line in measured.lines] == ["failed: it ended", ""]


def test_a_row_that_cannot_start_shows_the_reason(tmp_path: Path) -> None:
    @contextmanager
    def no_store(environment: Environment) -> Iterator[list[Contender]]:
        if environment.folder.exists():
            raise BenchError("no store")
        yield []

    measured = measure_row(replace(a_row(), contenders=no_store), an_environment(tmp_path), 1, lambda text: None)
    assert (measured.failed, measured.failure) == (True, "failed: no store")


# Rows and options


def test_the_table_has_all_rows() -> None:
    assert [row.name for row in ROWS] == [
        "create",
        "query",
        "batch",
        "bulk",
        "export",
        "deliver",
        "lateness-200",
        "lateness-1000",
        "million",
        "memory",
        "pending",
        "idle",
        "sweep",
    ]


every_row = pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row.name != "pending"],  # it fills its stores before it yields contenders
    ids=lambda row: row.name,
)


@every_row
@pytest.mark.system
def test_every_reference_is_a_contender_of_the_same_row(row: Row, tmp_path: Path) -> None:
    with row.contenders(an_environment(tmp_path)) as contenders:
        names = [contender.name for contender in contenders]
        assert {contender.reference for contender in contenders} <= {"", *names}
        assert len({(contender.name, contender.store) for contender in contenders}) == len(contenders)


@every_row
@pytest.mark.system
def test_every_durability_of_the_store_is_measured(row: Row, tmp_path: Path) -> None:
    environment = an_environment(tmp_path)
    with row.contenders(environment) as contenders:
        stores = {contender.store for contender in contenders} - {""}
    assert stores == {"memory": {"none"}, "export": {"none"}, "sweep": {"none", "always"}}.get(
        row.name, set(DURABILITIES)
    )


def test_selected_rows_keep_the_order_of_the_table() -> None:
    assert parse_options(["--only", "query,create"]).only == ["create", "query"]


def test_quick_is_one_run_without_persistence() -> None:
    options = parse_options(["--quick"])
    assert (options.runs, options.durabilities) == (1, ["none"])
    assert parse_options(["--quick", "--runs", "2", "--durability", "always"]).runs == 2


@pytest.mark.parametrize(
    "wrong",
    [["--only", "nothing"], ["--runs", "0"], ["--durability", "some"], ["--server", "/no/such"], ["--plot", "a.svg"]],
)
def test_wrong_options_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options([*wrong, "--only", "create"] if wrong[0] == "--plot" else wrong)
    assert wrong[0] in capsys.readouterr().err


# Receivers, loads and raw scripts


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    """A receiver with arrivals in its log; its process is any process."""
    log = tmp_path / "arrivals.log"
    log.write_text(
        "1504934230.004 a 2017-09-09T05:17:10.000Z\n"
        "1504934230.020 - -\n"
        "1504934230.009 a 2017-09-09T05:17:10.000Z\n"
        "1504934230.100 b 2017-09-09T05:17:10.101Z\n"
    )
    with Popen([shutil.which("sleep") or "sleep", "60"]) as process:
        yield Receiver("http://127.0.0.1:1/", log, Process(process, log))
        process.kill()


def test_arrivals_are_read_from_the_log(receiver: Receiver) -> None:
    arrivals = receiver.wait_for_arrivals(2, 1)
    assert [(arrival.id, round(arrival.late_ms)) for arrival in arrivals] == [(b"a", 4), (b"a", 9), (b"b", -1)]


def test_lateness_counts_first_arrivals(receiver: Receiver) -> None:
    late = lateness_figures(receiver.arrivals())
    assert {name: round(value) for name, value in late.items()} == {
        "p50": -1,
        "p99": 4,
        "most": 4,
        "earliest": -1,
        "twice": 1,
    }


def test_duplicate_and_early_arrivals_are_counted(receiver: Receiver) -> None:
    figures = delivery_figures(receiver.arrivals(), 1504934230_050)
    assert (figures["twice"], figures["early"], round(figures["rate"])) == (1, 2, 40)


def test_missing_callbacks_are_an_error(receiver: Receiver) -> None:
    with pytest.raises(BenchError, match="callbacks arrived in time"):
        receiver.wait_for_arrivals(3, 0.01)


@pytest.mark.parametrize(
    ("head", "length"),
    [(b"http/1.1 200 ok\r\ncontent-length: 12\r\nx: y", 12), (b"http/1.1 204 no\r\ncontent-length:0", 0), (b"", 0)],
)
def test_the_content_length_is_read_from_the_head(head: bytes, length: int) -> None:
    assert load_generator.content_length(head) == length


def test_a_header_is_found_in_any_case() -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nWebhook-Id:  one \r\nlater-due: now"
    found = [light_receiver.header_value(head, name) for name in (b"webhook-id:", b"later-due:", b"x:")]
    assert found == [b"one", b"now", b"-"]


def test_raw_creates_make_tasks_that_can_be_claimed(tmp_path: Path) -> None:
    environment = an_environment(tmp_path)
    creates = CreateBatches(MAX_TASKS + 1)
    with run_store(environment, "none") as store, RawConnection(store.socket) as connection:
        connection.load_scripts()
        connection.time_messages(creates.batches(3, lambda: int(time.time() * 1000)), creates.call_count, concurrency=2)
        assert tasks_in(connection) == (3 * (MAX_TASKS + 1), 3 * (MAX_TASKS + 1))


def tasks_in(connection: RawConnection) -> tuple[int, int]:
    connection.send(
        b"*2\r\n$4\r\nHLEN\r\n$14\r\n{later:0}:pool\r\n*2\r\n$5\r\nZCARD\r\n$21\r\n{later:0}:delay:order\r\n"
    )
    return connection.read_answer(), connection.read_answer()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_kind_of_task_takes_memory(tmp_path: Path, case: Case) -> None:
    assert 50 < measure_memory(an_environment(tmp_path, memory_tasks=2000), case)["bytes"] < 1000


# Processes


@pytest.mark.system
def test_the_load_generator_loads_the_light_receiver(tmp_path: Path) -> None:
    environment = an_environment(tmp_path)
    with run_light_receiver(environment) as receiver:
        load = Load(url=receiver.url, bodies=[b"{}", b"[]"], connections=4, seconds=10, requests=100)
        result = run_load(environment, load)
    assert 100 <= result.requests < 110


@pytest.mark.system
def test_a_row_is_measured(tmp_path: Path) -> None:
    environment = replace(an_environment(tmp_path, load_s=0.3), durabilities=["none"])
    measured = measure_row(CREATE, environment, 1, lambda text: None)
    assert not measured.failed, [line.failure for line in measured.lines]
    assert all(line.median("rate") > 0 for line in measured.lines)
