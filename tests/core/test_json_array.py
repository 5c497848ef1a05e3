"""Arrays of JSON split into their elements, whatever the elements hold."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core import json_array
from later.core.json_array import split_array
from tests.cases import each_case

VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=8,
)


@given(st.lists(VALUES))
def test_elements_are_split_as_they_stand(values: list[object]) -> None:
    assert [json.loads(element) for element in split_array(json.dumps(values).encode())] == values


@given(st.lists(VALUES, min_size=1), st.sampled_from([b"NaN", b'"\\ud800"', b'"caf\xe9"', b"-Infinity"]))
def test_a_malformed_element_spoils_no_other(values: list[object], malformed: bytes) -> None:
    document = b" [" + malformed + b" ,\n" + json.dumps(values).encode()[1:] + b"\t"
    first, *others = split_array(document)
    assert first == malformed
    assert [json.loads(element) for element in others] == values


@each_case("document", [b"", b"{}", b"[1,", b"[1 2]", b"[1] 2", b"[NaN] 2", b"[,]", b"nope"])
def test_a_document_that_is_not_an_array_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        split_array(document)


def test_an_array_nested_too_deeply_is_refused() -> None:
    with pytest.raises((ValueError, RecursionError)):
        split_array(b"[" * 1_000_000)


def test_scanning_a_large_array_stops_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "MANY_COMMAS", 3)
    assert split_array(b"[1,2,3,4,5,6", limit=4) == [b"1", b"2", b"3", b"4", b"5"]
