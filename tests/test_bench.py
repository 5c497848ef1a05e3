"""The benchmark without measurements: results, reports, rows and options."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from scripts.bench import plot
from scripts.bench.environment import Environment
from scripts.bench.options import parse_options
from scripts.bench.pairs import Turn, measure_pairs, take_turns
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
from scripts.bench.rows.sweep import SWEEP
from scripts.bench.runs import measure_row
from scripts.bench.stores import DURABILITIES
from tests.bench_environment import an_environment
from tests.cases import each_case

REFERENCE = "reference"


def no_measuring() -> Sample:
    raise BenchError("not to be measured")


def a_line(
    name: str, *samples: Sample, targets: tuple[Target, ...] = (), reference: str = "", store: str = ""
) -> ContenderResult:
    references = [reference] if reference else ()
    contender = Contender(name=name, measure=no_measuring, targets=targets, references=references, store=store)
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


@each_case(("percent", "value"), [(0, 1), (1, 1), (50, 50), (50.5, 51), (99, 99), (99.1, 100), (100, 100)])
def test_a_percentile_is_by_nearest_rank(percent: float, value: float) -> None:
    assert percentile(range(1, 101), percent) == value


def test_a_spread_has_median_least_greatest_and_quartiles() -> None:
    assert spread([3, 1, 2, 10]) == (2.5, 1, 10, 1, 3)


def test_a_ratio_compares_medians() -> None:
    measured = two_lines()
    assert measured.lines[1].ratio(measured.lines[0]) == 0.75


@each_case(
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
    assert target.is_met(measured.lines[1], measured.lines[:1]) is is_met


@each_case("target", [NeverEarly(), AlwaysZero("twice")])
def test_one_early_or_duplicate_delivery_misses_the_target(target: Target) -> None:
    good: Sample = {"earliest": 0.1, "twice": 0}
    bad: Sample = {"earliest": -0.1, "twice": 1}
    assert target.is_met(a_line("good", good, good, good), []) is True
    assert target.is_met(a_line("bad", good, bad, good), []) is False


def test_a_share_of_an_unmeasured_reference_is_unknown() -> None:
    assert ShareOfReference(0.5).is_met(a_line("ours", {"rate": 1.0}), [a_line(REFERENCE)]) is None


def test_a_result_may_be_compared_with_several_references() -> None:
    peer, reference = a_line("peer", {"rate": 500.0}), a_line(REFERENCE, {"rate": 2000.0})
    targets = ShareOfReference(0.5), ShareOfReference(3, "peer"), ShareOfReference(1, "unmeasured")
    ours = a_line("ours", {"rate": 1000.0}, targets=targets)
    ours.contender = replace(ours.contender, references=[REFERENCE, "peer", "unmeasured"])
    measured = RowResult(row=a_row(), lines=[peer, reference, a_line("unmeasured"), ours], runs=1)
    assert format_cells(measured, ours)[4:] == [
        "0.50 of reference, 2.00 of peer",
        "≥ 0.5 of the reference: met, ≥ 3 of peer: missed, ≥ 1 of unmeasured: not measured",
    ]


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


def test_a_ratio_of_pairs_shows_its_quartiles() -> None:
    line = a_line("ours", *({"ratio": ratio, "rate": 5.0} for ratio in (0.5, 0.96, 0.98, 1.0, 2.0)))
    row = a_row(figures=("ratio", "rate"))
    measured = RowResult(row=row, lines=[line], runs=2)
    assert format_cells(measured, line)[2] == "ratio 0.980 [quartiles 0.960 to 1.000], 5/s [5 to 5]"


def test_markdown_has_one_table_and_the_facts_about_the_machine() -> None:
    text = format_markdown(a_report(two_lines(), two_lines()))
    table, facts = text.split("\n\n")
    assert {line.count("|") for line in table.splitlines()} == {6}
    assert "| **what `later` does** |  | medians of 3 runs |  |  |" in table.splitlines()
    assert "| ours | none | 1,500/s [1,000 to 1,600] | 0.75 |  |" in table.splitlines()
    assert "wrk is not installed" in facts
    assert facts.endswith("Measured elsewhere, on another machine of the same size, row: Later (Go): 5/s.\n")


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
    assert ours["figures"]["rate"] == {
        "median": 1500,
        "least": 1000,
        "most": 1600,
        "lower_quartile": 1000,
        "upper_quartile": 1600,
    }
    assert ours["ratios"] == {REFERENCE: 0.75}
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


def test_a_run_may_have_several_samples(tmp_path: Path) -> None:
    pairs = Contender(name="pairs", measure=lambda: [{"rate": 1.0}, {"rate": 3.0}])
    texts: list[str] = []
    measured = measure_row(a_row(pairs), an_environment(tmp_path), 2, texts.append)
    assert [sample["rate"] for sample in measured.lines[0].samples] == [1, 3, 1, 3]
    assert texts == ["row: pairs, run 1: rate 2/s", "row: pairs, run 2: rate 2/s"]


def test_the_variants_of_a_pair_take_turns_in_alternating_order() -> None:
    order: list[str] = []

    def turn(name: str, rate: float, cpu: float) -> Sample:
        order.append(name)
        return {"rate": rate, "server_cpu": cpu, "twice": 1}

    samples = take_turns(partial(turn, "without", 4.0, 16.0), partial(turn, "with", 3.0, 20.0), 3)
    assert order == ["without", "with", "with", "without", "without", "with"]
    assert samples == 3 * [
        {
            "rate": 3,
            "server_cpu": 20,
            "twice": 2,
            "ratio": 0.75,
            "cpu_ratio": 0.8,
            "reference_rate": 4,
            "reference_cpu": 16,
        }
    ]


def test_the_variants_of_a_start_have_the_same_hash_seed_and_another_one_in_the_next() -> None:
    seeds: list[str] = []

    @contextmanager
    def start(rate: float, variables: Mapping[str, str]) -> Iterator[Turn]:
        seeds.append(variables["PYTHONHASHSEED"])
        yield lambda: {"rate": rate, "server_cpu": 1.0}

    samples = [measure_pairs(partial(start, 4.0), partial(start, 1.0), pairs=1) for _ in range(10)]
    assert [each[0]["ratio"] for each in samples] == [0.25] * 10
    assert seeds[::2] == seeds[1::2]
    assert len(set(seeds)) > 1


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
        "durability",
        "query",
        "batch",
        "bulk",
        "export",
        "deliver",
        "deliver-https",
        "deliver-topics",
        "deliver-origins",
        "lateness-200",
        "lateness-1000",
        "lateness-4000",
        "isolation",
        "endless",
        "consoles",
        "pull",
        "pull-100",
        "pull-wait",
        "pull-idle",
        "handlers",
        "keys",
        "signed",
        "guard",
        "access-log",
        "traces",
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


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Spark's rows open no session: only the names of their contenders count."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))


@every_row
@pytest.mark.usefixtures("no_java")
def test_every_reference_is_a_contender_of_the_same_row(row: Row, tmp_path: Path) -> None:
    with row.contenders(an_environment(tmp_path)) as contenders:
        names = [contender.name for contender in contenders]
        assert {name for contender in contenders for name in contender.references} <= set(names)
        assert len({(contender.name, contender.store) for contender in contenders}) == len(contenders)


@every_row
@pytest.mark.usefixtures("no_java")
def test_every_durability_of_the_store_is_measured(row: Row, tmp_path: Path) -> None:
    environment = an_environment(tmp_path)
    with row.contenders(environment) as contenders:
        stores = {contender.store for contender in contenders} - {""}
    without_persistence = {
        *("memory", "export", "deliver-https", "deliver-topics", "deliver-origins", "isolation"),
        *("endless", "consoles", "keys", "signed", "guard", "access-log", "traces"),
        *("pull-wait", "pull-idle", "handlers"),
    }
    of_one = {"sweep": {"none", "always"}, "durability": {"everysec", "always"}}
    expected = {"none"} if row.name in without_persistence else set(DURABILITIES)
    assert stores == of_one.get(row.name, expected)


def test_selected_rows_keep_the_order_of_the_table() -> None:
    assert parse_options(["--only", "query,create"]).only == ["create", "query"]


def test_quick_is_one_run_without_persistence() -> None:
    options = parse_options(["--quick"])
    assert (options.runs, options.durabilities) == (1, ["none"])
    assert parse_options(["--quick", "--runs", "2", "--durability", "always"]).runs == 2


@each_case(
    "wrong",
    [["--only", "nothing"], ["--runs", "0"], ["--durability", "some"], ["--server", "/no/such"], ["--plot", "a.svg"]],
)
def test_wrong_options_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options([*wrong, "--only", "create"] if wrong[0] == "--plot" else wrong)
    assert wrong[0] in capsys.readouterr().err
