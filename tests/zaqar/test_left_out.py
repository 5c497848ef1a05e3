"""The table of tests that are left out."""

from __future__ import annotations

from fnmatch import filter as matching

from tests.zaqar import test_client_tests, test_wsgi_tests
from tests.zaqar.left_out import LEFT_OUT


def test_each_name_in_the_table_is_that_of_a_test() -> None:
    names = [str(test) for test in (*test_wsgi_tests.TESTS, *test_client_tests.TESTS)]
    assert [pattern for patterns in LEFT_OUT.values() for pattern in patterns if not matching(names, pattern)] == []
