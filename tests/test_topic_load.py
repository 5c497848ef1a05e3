"""The program that measures what many topics and policies cost."""

from __future__ import annotations

from click.testing import CliRunner

from scripts.topic_load import main


def test_it_measures_a_census_a_scrape_pages_and_policies() -> None:
    result = CliRunner().invoke(main, ["--topics", "60", "--policies", "1100", "--shards", "2"], catch_exceptions=False)
    assert result.exit_code == 0
    names = [line[:34].rstrip() for line in result.output.splitlines()]
    assert {"census", "GET /metrics", "GET /topics", "policies: first reading", "policies: a change, here"} <= {*names}
