"""Drafts that are admitted, drafts that are refused, and the texts of refusals."""

from __future__ import annotations

import math
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from later.core.admit import admit
from later.core.caller import RESERVED_ID_STARTS
from later.core.errors import Refused
from later.core.policy import DelayMode, Deliver, Policy
from later.core.policy_scopes import Policies, Settings, namespace_scope, topic_scope
from later.core.task import Draft, Task, decode_task, encode_task, new_id
from later.core.validation import DAY_MS, EXPECTED, MAX_AHEAD_MS, MAX_TTL_MS, to_milliseconds
from tests.builders import NOW, a_draft
from tests.cases import each_case
from tests.core.test_task import LEGAL_IDS

FRESH_ID = "35adbde5-77c4-4d65-adac-0082d91f2554"
TEN_YEARS_S = 3653 * 86_400
HEADER_NAMES = st.from_regex(r"\Ax-[a-z!#$%&'*+.^_`|~0-9-]{1,20}\Z")
PRINTABLE = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=40)
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)


def admit_or_refuse(draft: Draft, policy: Policy) -> Task | Refused:
    try:
        return admit(draft, Policies(policy), NOW, FRESH_ID)
    except Refused as refusal:
        return refusal


def admit_draft(policy: Policy | None = None, /, **changes: Any) -> Task:
    return admit(a_draft(**changes), Policies(policy or Policy()), NOW, FRESH_ID)


def refuse_draft(policy: Policy | None = None, /, **changes: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        admit_draft(policy, **changes)
    return caught.value


class TestPulledTopics:
    """In a pulled topic tasks have no callback, and ids that sort in the order of creation."""

    PULLED = Policy(deliver=Deliver.PULL)

    def test_a_task_has_no_callback(self) -> None:
        assert admit_draft(self.PULLED, callback=None).callback == ""

    def test_a_callback_is_refused_by_name(self) -> None:
        refused = refuse_draft(self.PULLED)
        assert refused.field == "callback"
        assert refused.detail == (
            "callback: expected none, because consumers claim the topic's tasks (deliver pull), "
            f'got "{a_draft().callback}"'
        )

    def test_a_missing_callback_is_refused_elsewhere_and_the_refusal_names_deliver(self) -> None:
        refused = refuse_draft(callback=None)
        assert (refused.field, "deliver pull" in refused.detail) == ("callback", True)

    def test_an_id_that_the_caller_leaves_out_is_ordered_and_its_own_is_kept(self) -> None:
        policies, draft = Policies(self.PULLED), a_draft(callback=None)
        ids = [admit(draft, policies, NOW, new_id()).id for _ in range(10)]
        assert ids == sorted(ids)
        assert {uuid.UUID(id).version for id in ids} == {7}
        assert admit_draft(self.PULLED, callback=None, id="own").id == "own"


class TestAdmittedTask:
    def test_a_draft_becomes_a_task(self) -> None:
        draft = Draft(
            topic="order",
            callback="http://127.0.0.1:8888/success",
            delay=10,
            retry=1,
            content="hello",
            headers={"Authorization": "Bearer t"},
            context={"tenant": "t", "": "\n"},
            ttl=60,
            id="order-17",
        )
        assert admit(draft, Policies(Policy()), NOW, FRESH_ID) == Task(
            id="order-17",
            own_id=True,
            topic="order",
            callback="http://127.0.0.1:8888/success",
            content="hello",
            headers={"Authorization": "Bearer t"},
            context={"tenant": "t", "": "\n"},
            max_retry=1,
            created_at=NOW,
            execute_at=NOW + 10_000,
            expires_at=NOW + 60_000,
        )

    def test_absent_fields_come_from_the_policy(self) -> None:
        policy = Policy(default_delay_ms=15_000, retry=7)
        draft = Draft(topic="order", callback="http://h/")
        assert admit(draft, Policies(policy), NOW, FRESH_ID) == Task(
            id=FRESH_ID,
            own_id=False,
            topic="order",
            callback="http://h/",
            content="",
            headers={},
            max_retry=7,
            created_at=NOW,
            execute_at=NOW + 15_000,
            expires_at=None,
        )

    def test_a_retry_of_zero_is_a_value(self) -> None:
        assert admit_draft(Policy(retry=7), retry=0).max_retry == 0

    def test_a_delay_of_zero_is_a_value(self) -> None:
        assert admit_draft(Policy(default_delay_ms=15_000), delay=0.0).execute_at == NOW

    def test_an_execute_time_overrides_the_default_delay(self) -> None:
        task = admit_draft(Policy(default_delay_ms=15_000), execute_time=NOW / 1000 + 5)
        assert task.execute_at == NOW + 5_000


class TestRefusals:
    @each_case(
        ("field", "value", "got"),
        [
            ("topic", None, "nothing"),
            ("topic", "", '""'),
            ("topic", "/", '"/"'),
            ("topic", "/x", '"/x"'),
            ("topic", "x/", '"x/"'),
            ("topic", "x//y", '"x//y"'),
            ("topic", "default/", '"default/"'),
            ("topic", "a\nb", r'"a\nb"'),
            ("topic", "a\x00", r'"a\x00"'),
            ("topic", "a\x7f", r'"a\x7f"'),
            ("topic", "a\x85", r'"a\x85"'),
            ("topic", "x" * 256, '"' + "x" * 76 + "…"),
            ("topic", "ü" * 128, '"' + "ü" * 76 + "…"),
            ("topic", "default/" + "x" * 248, '"default/' + "x" * 68 + "…"),
            ("callback", "", '""'),
            ("callback", "/success", '"/success"'),
            ("callback", "h/success", '"h/success"'),
            ("callback", "//h/success", '"//h/success"'),
            ("callback", "http:h", '"http:h"'),
            ("callback", "http:///success", '"http:///success"'),
            ("callback", "http://", '"http://"'),
            ("callback", "ftp://h/", '"ftp://h/"'),
            ("callback", "file:///etc/passwd", '"file:///etc/passwd"'),
            ("callback", "unix:///run/it.sock", '"unix:///run/it.sock"'),
            ("callback", "javascript:alert(1)", '"javascript:alert(1)"'),
            ("callback", " http://h/", '" http://h/"'),
            ("callback", "http://h/ ", '"http://h/ "'),
            ("callback", "http://h/a b", '"http://h/a b"'),
            ("callback", "http://h/\u3000", r'"http://h/\u3000"'),
            ("callback", "http://h/\r\nX-A: b", r'"http://h/\r\nX-A: b"'),
            ("callback", "http://h\t/", r'"http://h\t/"'),
            ("callback", "http://h/\x00", r'"http://h/\x00"'),
            ("callback", "http://h/\x9f", r'"http://h/\x9f"'),
            ("callback", "http://h\\@evil/", r'"http://h\\@evil/"'),
            ("delay", -5, "-5"),
            ("delay", -5.0, "-5"),
            ("delay", -0.001, "-0.001"),
            ("delay", -5e-324, "-5e-324"),
            ("delay", math.inf, "inf"),
            ("delay", -math.inf, "-inf"),
            ("delay", math.nan, "nan"),
            ("execute_time", math.inf, "inf"),
            ("execute_time", -math.inf, "-inf"),
            ("execute_time", math.nan, "nan"),
            ("retry", -1, "-1"),
            ("retry", 1001, "1001"),
            ("retry", 10**30, "1" + "0" * 30),
            ("ttl", 0.0, "0"),
            ("ttl", -0.0, "0"),
            ("ttl", -1.5, "-1.5"),
            ("ttl", math.inf, "inf"),
            ("ttl", math.nan, "nan"),
            ("remember", -1, "-1"),
            ("remember", math.inf, "inf"),
            ("remember", math.nan, "nan"),
            ("id", "", '""'),
            ("id", "a b", '"a b"'),
            ("id", "a/b", '"a/b"'),
            ("id", "ü", '"ü"'),
            ("id", "٣", '"٣"'),
            ("id", "a\n", r'"a\n"'),
            ("id", "\ud800", r'"\ud800"'),
            ("id", "x" * 129, '"' + "x" * 76 + "…"),
        ],
    )
    def test_a_refusal_says_what_was_expected_and_what_came(self, field: str, value: Any, got: str) -> None:
        assert refuse_draft(**{field: value}).detail == f"{field}: expected {EXPECTED[field]}, got {got}"

    @each_case(
        "url",
        [
            "http://h:99999/",
            "http://h:65536/",
            "http://h:-1/",
            "http://h:http/",
            "http://:80/",
            "http://[::1/",
            "http://[]/",
            "http://[::g]/",
            "http://a[::1]/",
            "http://xn--/",
            "http://\u200d.example/",
            "http://" + "ü" * 70 + ".example/",
            "http://h\u2100evil/",
        ],
    )
    def test_a_malformed_url_is_refused(self, url: str) -> None:
        assert refuse_draft(callback=url).detail.startswith(f"callback: expected {EXPECTED['callback']}, got ")

    @each_case(
        "url",
        [
            "http://user:secret@h/",
            "https://user:secret@h:99999/",
            "ftp://user:secret@h/",
            "http://secret@h/",
            "http://:secret@h/",
            "http://@h/",
            "http://h@h@h/",
        ],
    )
    def test_a_url_with_a_password_is_refused_without_showing_it(self, url: str) -> None:
        assert refuse_draft(callback=url).detail == ("callback: expected a URL without user:password@, got one with it")

    @each_case("url", ["http://h/#", "http://h/#top", "http://h#", "http://h/?a#b", "http://h/##"])
    def test_a_url_with_a_fragment_is_refused(self, url: str) -> None:
        assert refuse_draft(callback=url).detail == f'callback: expected a URL without a fragment, got "{url}"'

    def test_a_url_of_2049_characters_is_refused(self) -> None:
        assert refuse_draft(callback="http://h/" + "x" * 2040).field == "callback"

    @each_case("field", ["topic", "callback", "content"])
    def test_a_lone_surrogate_is_refused(self, field: str) -> None:
        assert refuse_draft(**{field: "http://h/\ud83d"}).detail == (
            f"{field}: expected Unicode text, got a lone surrogate in it"
        )

    @each_case("headers", [{"X-\ud83d": "a"}, {"X-A": "\ud83d"}])
    def test_a_lone_surrogate_in_a_header_is_refused(self, headers: dict[str, str]) -> None:
        assert refuse_draft(headers=headers).detail == ("headers: expected Unicode text, got a lone surrogate in it")

    def test_delay_and_execute_time_together_are_refused(self) -> None:
        assert refuse_draft(delay=0.0, execute_time=0.0).detail == (
            "execute_time: expected either delay or execute_time, got both"
        )

    @each_case(
        ("field", "value", "got"),
        [
            ("delay", TEN_YEARS_S + 0.001, "315619200.001"),
            ("delay", 1e15, "1000000000000000.0"),
            ("delay", 1.7976931348623157e308, "1.7976931348623157e+308"),
            ("execute_time", (NOW + MAX_AHEAD_MS + 1) / 1000, "2115619200.001"),
            ("execute_time", 1.8e15, "1800000000000000.0"),
            ("execute_time", 1e308, "1e+308"),
        ],
    )
    def test_more_than_ten_years_ahead_is_refused(self, field: str, value: float, got: str) -> None:
        assert refuse_draft(**{field: value}).detail == (f"{field}: expected a time at most ten years ahead, got {got}")

    @each_case(
        "change",
        [{"topic": "\n" * 300}, {"callback": "\n"}, {"id": "\n"}, {"headers": {"\n": ""}}],
        ids=["topic", "callback", "id", "headers"],
    )
    def test_a_refusal_is_one_line(self, change: dict[str, Any]) -> None:
        assert "\n" not in refuse_draft(**change).detail

    @each_case(
        ("change", "field"),
        [
            ({"topic": ""}, "topic"),
            ({"callback": "http://@h/"}, "callback"),
            ({"callback": "http://h/#"}, "callback"),
            ({"callback": "http://h:x/"}, "callback"),
            ({"delay": -1.0}, "delay"),
            ({"delay": 1e300}, "delay"),
            ({"execute_time": math.nan}, "execute_time"),
            ({"execute_time": 1e300}, "execute_time"),
            ({"retry": -1}, "retry"),
            ({"content": "\ud800"}, "content"),
            ({"headers": {"Host": "h"}}, "headers"),
            ({"headers": {"X-A": "\n"}}, "headers"),
            ({"ttl": -1.0}, "ttl"),
            ({"id": ""}, "id"),
        ],
    )
    def test_a_refusal_names_its_field(self, change: dict[str, Any], field: str) -> None:
        assert refuse_draft(**change).field == field


class TestLimits:
    @each_case(
        "change",
        [
            {"topic": "x"},
            {"topic": "x" * 255},
            {"topic": "ü" * 127 + "x"},
            {"topic": "günther der igel 🦔/\u2028"},
            {"topic": "a/b/c"},
            {"callback": "http://h/" + "x" * 2039},
            {"delay": 0},
            {"delay": 5e-324},
            {"delay": float(TEN_YEARS_S)},
            {"execute_time": (NOW + MAX_AHEAD_MS) / 1000},
            {"retry": 0},
            {"retry": 1000},
            {"content": "\0" * 2**20},
            {"headers": {f"X-{n}": "" for n in range(20)}},
            {"headers": {"X-A": "x" * 4093}},
            {"headers": {"X-A": "ü" * 2046 + "x"}},
            {"ttl": 5e-324},
            {"ttl": 1e308},
            {"id": "x"},
            {"id": "A-Za-z0-9._~:-" + "x" * 114},
        ],
    )
    def test_a_value_just_inside_its_limit_is_admitted(self, change: dict[str, Any]) -> None:
        assert isinstance(admit_draft(**change), Task)

    @each_case(
        "url",
        [
            "http://h",
            "https://h/",
            "HTTP://H/",
            "http://h?q",
            "http://h/?mail=a@b",
            "http://h/@",
            "http://h:65535/",
            "http://h:/",
            "http://127.0.0.1:8888/success",
            "http://[::1]/",
            "http://[2001:db8::1]:8080/p?q=[1]",
            "http://bücher.example/straße?ü=1",
            "http://xn--bcher-kva.example/",
            "http://例え.テスト/",
            "http://h/%zz",
        ],
    )
    def test_a_url_is_admitted_as_it_came(self, url: str) -> None:
        assert admit_draft(callback=url).callback == url

    @each_case(
        ("given_topic", "canonical"),
        [
            ("x", "x"),
            ("default/x", "x"),
            ("default", "default"),
            ("default/default", "default"),
            ("default/x/y", "default/x/y"),
            ("defaults/x", "defaults/x"),
            ("Default/x", "Default/x"),
            ("a/default", "a/default"),
        ],
    )
    def test_a_topic_has_one_name(self, given_topic: str, canonical: str) -> None:
        assert admit_draft(topic=given_topic).topic == canonical

    @each_case("topic", ["later/events", "later/a/b", "later/later"])
    def test_a_topic_of_the_reserved_namespace_is_refused(self, topic: str) -> None:
        refusal = admit_or_refuse(a_draft(topic=topic), Policy())
        assert isinstance(refusal, Refused)
        assert (refusal.field, str(refusal)) == (
            "topic",
            "topic: expected another one, because the namespace later is reserved",
        )

    @each_case("topic", ["later", "laterx", "Later/x", "x/later", "default/later/x"])
    def test_a_topic_whose_name_is_like_the_reserved_namespace_is_admitted(self, topic: str) -> None:
        assert admit_draft(topic=topic).topic == topic

    @each_case("name", ["x", "default", "default/x", "default/x/y", "a/b"])
    def test_a_canonical_topic_stays_as_it_is(self, name: str) -> None:
        canonical = admit_draft(topic=name).topic
        assert admit_draft(topic=canonical).topic == canonical

    @each_case(
        ("ttl", "kept_ms"),
        [(5e-324, 1), (0.0011, 2), (60, 60_000), (1e300, MAX_TTL_MS), (MAX_TTL_MS / 1000 + 1, MAX_TTL_MS)],
    )
    def test_a_ttl_is_kept_in_milliseconds_and_cut_to_the_maximum(self, ttl: float, kept_ms: int) -> None:
        assert admit_draft(ttl=ttl).expires_at == NOW + kept_ms

    @each_case("remember, kept_ms", [(0, 0), (0.0005, 1), (900, 900_000), (1e308, MAX_TTL_MS)])
    def test_an_id_is_remembered_for_as_long_as_its_caller_says(self, remember: float, kept_ms: int) -> None:
        assert admit_draft(id="a", remember=remember).remember_ms == kept_ms

    def test_only_an_id_that_the_caller_chose_can_be_remembered(self) -> None:
        refused = refuse_draft(remember=900)
        assert (refused.field, refused.detail) == (
            "remember", "remember: expected it with an id of your own, because no other is remembered"
        )  # fmt: skip

    def test_a_ttl_shorter_than_the_delay_is_admitted(self) -> None:
        assert admit_draft(delay=10.0, ttl=5.0).expires_at == NOW + 5_000


class TestHeaders:
    def test_a_header_repeated_in_other_case_is_refused(self) -> None:
        refused = refuse_draft(headers={"X-A": "1", "x-a": "2"})
        assert (refused.field, refused.detail) == (
            "headers",
            "headers: expected each name once, whatever its case, got one twice",
        )

    def test_twenty_one_headers_are_refused(self) -> None:
        assert refuse_draft(headers={f"X-{n}": "" for n in range(21)}).detail == (
            "headers: expected an object of up to 20 strings, got 21"
        )

    @each_case("headers", [{"X-A": "x" * 4094}, {"X-A": "ü" * 2047}, {"X-" + "A" * 4095: ""}])
    def test_4097_bytes_of_headers_are_refused(self, headers: dict[str, str]) -> None:
        assert refuse_draft(headers=headers).detail == "headers: expected at most 4096 bytes in all, got 4097"

    @each_case("change_case", [str.lower, str.upper, str.title])
    @each_case(
        "name",
        [
            "host",
            "content-type",
            "content-length",
            "content-encoding",
            "content-",
            "connection",
            "close",
            "keep-alive",
            "proxy",
            "proxy-authorization",
            "proxy-authenticate",
            "proxy-authentication-info",
            "proxy-connection",
            "te",
            "trailer",
            "trailers",
            "transfer-encoding",
            "upgrade",
            "http2-settings",
            "expect",
            "webhook-id",
            "webhook-timestamp",
            "webhook-signature",
            "later-attempt",
            "later-due",
            "later-anything",
        ],
    )
    def test_a_header_that_later_sets_is_refused_in_any_case(self, name: str, change_case: type[str]) -> None:
        given_name = change_case(name)
        assert refuse_draft(headers={given_name: "x"}).detail == (
            f'headers: expected a header of your own, got "{given_name}", which later sets'
        )

    @each_case(
        "name",
        [
            "Webhook_Id",
            "Later_Attempt",
            "Content_Length",
            "Transfer_Encoding",
            "keep_alive",
            "PROXY_",
            "HTTP2_Settings",
        ],
    )
    def test_a_header_that_imitates_a_reserved_one_by_an_underscore_is_refused(self, name: str) -> None:
        assert refuse_draft(headers={name: "x"}).detail == (
            f'headers: expected a header of your own, got "{name}", which later sets'
        )

    @each_case(
        "name",
        [
            "Authorization",
            "User-Agent",
            "Accept",
            "Cookie",
            "X-Host",
            "X-Content-Type",
            "Contents",
            "Hosts",
            "Later",
            "Webhook",
            "Tea",
            "Proxied",
            "Closed",
            "X_Own_",
            "!#$%&'*+.^_`|~",
        ],
    )
    def test_a_callers_own_header_is_admitted(self, name: str) -> None:
        assert admit_draft(headers={name: "x"}).headers == {name: "x"}

    @each_case(
        ("name", "shown"),
        [
            ("", '""'),
            (" ", '" "'),
            ("X A", '"X A"'),
            ("X-A:", '"X-A:"'),
            ("X-A\r\nX-B", r'"X-A\r\nX-B"'),
            ("X-A\n", r'"X-A\n"'),
            ("X-\x00", r'"X-\x00"'),
            ("X-Ü", '"X-Ü"'),
            ("Host ", '"Host "'),
            ("X(A)", '"X(A)"'),
        ],
    )
    def test_a_bad_name_is_refused(self, name: str, shown: str) -> None:
        assert refuse_draft(headers={name: "x"}).detail == (f"headers: expected the name of a header, got {shown}")

    @each_case("control", ["\r\n", "\n", "\0", "\t", "\x1f", "\x7f", "\x80", "\x9f"])
    def test_a_control_character_in_a_value_is_refused(self, control: str) -> None:
        assert refuse_draft(headers={"X-A": f"a{control}b"}).detail == (
            'headers: expected no control characters, got one in "X-A"'
        )

    @each_case(
        "headers",
        [
            {"X-A": "s3cret\n"},
            {"X A": "s3cret"},
            {"Host": "s3cret"},
            {"X-A": "s3cret\ud800"},
            {"X-A": "s3cret" * 1000},
            {f"X-{n}": "s3cret" for n in range(21)},
        ],
        ids=["control", "name", "host", "surrogate", "large", "many"],
    )
    def test_a_value_is_never_shown_in_a_refusal(self, headers: dict[str, str]) -> None:
        assert "s3cret" not in refuse_draft(headers=headers).detail

    @each_case("context", [{"a": "x" * 4088}, {"ü" * 2044: ""}, {"a": "\n" * 2044}, {"a": '"' * 2044}, {"a": ""}])
    def test_a_context_of_4096_bytes_as_json_is_kept(self, context: dict[str, str]) -> None:
        assert admit_draft(context=context).context == context

    @each_case(
        ("context", "got"),
        [
            ({"a": "s3cret" * 1000}, 6008),
            ({"a": "x" * 4089}, 4097),
            ({"ü" * 2045: ""}, 4097),
            ({"a": "\0" * 700}, 4208),
        ],
    )
    def test_a_larger_context_is_refused_without_its_values(self, context: dict[str, str], got: int) -> None:
        detail = f"context: expected an object of strings, of at most 4096 bytes as JSON, got {got}"
        assert refuse_draft(context=context).detail == detail

    @each_case("context", [{"\ud83d": "a"}, {"a": "\ud83d"}])
    def test_a_lone_surrogate_in_a_context_is_refused(self, context: dict[str, str]) -> None:
        assert refuse_draft(context=context).detail == "context: expected Unicode text, got a lone surrogate in it"

    def test_an_empty_context_is_none(self) -> None:
        assert admit_draft(context={}).context is None

    def test_an_empty_object_is_no_headers(self) -> None:
        assert admit_draft(headers={}).headers == {}


def floats_near(ms: int) -> st.SearchStrategy[float]:
    """Return the float nearest to `ms` in seconds, and its neighbours."""
    seconds = ms / 1000
    return st.sampled_from([seconds, math.nextafter(seconds, 0), math.nextafter(seconds, math.inf)])


SECONDS_AHEAD = st.floats(0, TEN_YEARS_S) | st.integers(0, MAX_AHEAD_MS - 1).flatmap(floats_near)
UNIX_SECONDS = st.floats(0, TEN_YEARS_S).map(lambda ahead: NOW / 1000 + ahead) | (
    st.integers(NOW, NOW + MAX_AHEAD_MS - 1).flatmap(floats_near)
)


def exact_milliseconds(seconds: float) -> Fraction:
    """Return the exact value that the caller wrote: `0.035` is 35 ms, although no float is."""
    return Fraction(Decimal(repr(seconds))) * 1000


class TestDueTime:
    @each_case(
        ("delay", "delay_ms"),
        [
            (0.0, 0),
            (-0.0, 0),
            (5e-324, 1),
            (0.0001, 1),
            (0.001, 1),
            (0.0010000001, 2),
            (0.035, 35),
            (0.03500000000000001, 36),
            (1.1, 1_100),
            (15, 15_000),
            (86_399.9991, 86_400_000),
        ],
    )
    def test_a_delay_is_rounded_up_to_the_millisecond(self, delay: float, delay_ms: int) -> None:
        assert admit_draft(delay=delay).execute_at == NOW + delay_ms

    @given(SECONDS_AHEAD)
    def test_a_task_is_due_within_the_millisecond_after_its_delay(self, delay: float) -> None:
        assert 0 <= admit_draft(delay=delay).execute_at - NOW - exact_milliseconds(delay) < 1

    @given(UNIX_SECONDS)
    def test_a_task_is_due_within_the_millisecond_after_its_execute_time(self, execute_time: float) -> None:
        execute_at = admit_draft(execute_time=execute_time).execute_at
        assert 0 <= execute_at - max(exact_milliseconds(execute_time), Fraction(NOW)) < 1

    @given(st.integers(0, NOW + MAX_AHEAD_MS))
    def test_a_whole_number_of_milliseconds_is_kept(self, ms: int) -> None:
        assert to_milliseconds(ms / 1000) == ms

    @each_case("execute_time", [NOW / 1000, NOW / 1000 - 0.001, 1.0, 0.0, -1.0, -1e308])
    def test_an_execute_time_past_means_now(self, execute_time: float) -> None:
        assert admit_draft(execute_time=execute_time).execute_at == NOW

    @each_case(
        "change",
        [{"delay": 900.0}, {"delay": 899.9999}, {"execute_time": NOW / 1000 + 900}, {"execute_time": 0.0}],
    )
    def test_a_due_time_at_the_topics_limit_is_admitted(self, change: dict[str, Any]) -> None:
        assert admit_draft(Policy(max_delay_ms=900_000), **change).execute_at <= NOW + 900_000

    @each_case(
        "change",
        [
            {"delay": 900.001},
            {"delay": 900.0000001},
            {"delay": 901},
            {"execute_time": NOW / 1000 + 900.001},
            {"execute_time": NOW / 1000 + 901},
        ],
    )
    def test_a_due_time_beyond_the_topics_limit_is_refused_in_zaqars_words(self, change: dict[str, Any]) -> None:
        assert refuse_draft(Policy(max_delay_ms=900_000), **change).detail == (
            "Exceeds max allowed delivery delay of 900000 milliseconds"
        )

    @each_case("change", [{"delay": 901.0}, {"execute_time": NOW / 1000 + 901}])
    def test_a_due_time_beyond_the_topics_limit_names_its_field(self, change: dict[str, Any]) -> None:
        assert [refuse_draft(Policy(max_delay_ms=900_000), **change).field] == list(change)

    def test_a_limit_of_zero_means_no_limit(self) -> None:
        assert admit_draft(Policy(max_delay_ms=0), delay=86_400.0).execute_at == NOW + DAY_MS

    def test_a_limit_does_not_extend_the_ten_years(self) -> None:
        refusal = refuse_draft(Policy(max_delay_ms=2 * MAX_AHEAD_MS), delay=TEN_YEARS_S + 1.0)
        assert "ten years" in refusal.detail


URL_LIKE = st.builds(
    "{}{}{}".format,
    st.sampled_from(["http://", "https://", "HTTP://", "ftp://", "http:", "//", "http://xn--", "http://["]),
    st.text("abü.:@[]%0123456789-٣\u200d\u2100x\\", max_size=20),
    st.just("") | st.text("/?#a @\n%ü", max_size=10),
)
ANY_HEADERS = st.dictionaries(HEADER_NAMES | ANY_TEXT, PRINTABLE | ANY_TEXT, max_size=25)
ANY_DRAFTS = st.builds(
    Draft,
    topic=st.none() | st.just("order") | ANY_TEXT,
    callback=st.none() | st.just("http://h/") | URL_LIKE | ANY_TEXT,
    delay=st.none() | SECONDS_AHEAD | st.floats() | st.integers(),
    execute_time=st.none() | UNIX_SECONDS | st.floats() | st.integers(),
    retry=st.none() | st.integers(0, 1000) | st.integers(),
    content=st.none() | ANY_TEXT,
    headers=st.none() | ANY_HEADERS,
    ttl=st.none() | st.floats(min_value=0, exclude_min=True) | st.floats() | st.integers(),
    id=st.none() | LEGAL_IDS | ANY_TEXT,
)
DRAFTS = st.builds(
    Draft,
    topic=PRINTABLE.filter(lambda text: text != "" and "/" not in text),
    callback=st.sampled_from(["http://h/", "https://bücher.example:8443/?a=b", "http://[::1]/"]),
    delay=st.none() | SECONDS_AHEAD,
    retry=st.none() | st.integers(0, 1000),
    content=st.none() | st.text(),
    headers=st.none() | st.dictionaries(HEADER_NAMES, PRINTABLE, max_size=10),
    ttl=st.none() | st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    id=st.none() | LEGAL_IDS.filter(lambda id: not id.startswith(RESERVED_ID_STARTS)),
)
POLICIES = st.builds(
    Policy,
    default_delay_ms=st.integers(0, MAX_AHEAD_MS),
    max_delay_ms=st.just(0) | st.integers(1, MAX_AHEAD_MS),
    retry=st.integers(0, 1000),
)


def obeys_contract(task: Task, policy: Policy) -> bool:
    size = sum(len(name.encode()) + len(value.encode()) for name, value in task.headers.items())
    furthest = max(MAX_AHEAD_MS, policy.default_delay_ms)
    return (
        1 <= len(task.topic.encode()) <= 255
        and 1 <= len(task.id) <= 128
        and task.id.isascii()
        and task.callback.lower().startswith(("http://", "https://"))
        and len(task.callback) <= 2048
        and 0 <= task.max_retry <= 1000
        and len(task.headers) <= 20
        and size <= 4096
        and task.created_at == NOW
        and NOW <= task.execute_at <= NOW + furthest
        and (task.expires_at is None or NOW < task.expires_at <= NOW + MAX_TTL_MS)
    )


class TestAnyDraft:
    @given(ANY_DRAFTS, POLICIES)
    @example(Draft(topic="a", callback="http://xn--/"), Policy())
    @example(Draft(topic="a", callback="http://h/", ttl=1e308), Policy())
    def test_a_draft_is_admitted_by_the_contract_or_refused_by_field(self, draft: Draft, policy: Policy) -> None:
        match admit_or_refuse(draft, policy):
            case Refused(field=field):
                assert field in Draft.__struct_fields__
            case Task() as task:
                assert obeys_contract(task, policy)

    @given(DRAFTS)
    def test_a_valid_draft_is_admitted_by_the_contract(self, draft: Draft) -> None:
        assert obeys_contract(admit(draft, Policies(Policy()), NOW, FRESH_ID), Policy())

    @given(DRAFTS, st.integers(0, MAX_AHEAD_MS))
    def test_an_admitted_task_can_be_stored(self, draft: Draft, default_delay_ms: int) -> None:
        task = admit(draft, Policies(Policy(default_delay_ms=default_delay_ms)), NOW, FRESH_ID)
        assert decode_task(task.id, encode_task(task)) == task

    @given(URL_LIKE)
    def test_a_url_is_admitted_as_it_came_or_refused(self, url: str) -> None:
        match admit_or_refuse(a_draft(callback=url), Policy()):
            case Refused(field=field):
                assert field == "callback"
            case Task(callback=callback):
                assert callback == url

    @given(ANY_HEADERS)
    def test_headers_are_admitted_as_they_came_or_refused(self, headers: dict[str, str]) -> None:
        match admit_or_refuse(a_draft(headers=headers), Policy()):
            case Refused(field=field):
                assert field == "headers"
            case Task(headers=kept):
                assert kept == headers


class TestZaqarsScenarios:
    """A queue's default delay, a message's own delay over it, and a queue without delays."""

    @each_case("mode", DelayMode)
    @each_case(("own", "due"), [({}, 30), ({"delay": 10.0}, 10), ({"delay": 0.0}, 0)])
    def test_a_tasks_own_delay_overrides_the_default(self, mode: DelayMode, own: dict[str, float], due: int) -> None:
        policy = Policy(default_delay_ms=30_000, delay_mode=mode)
        assert admit_draft(policy, **own).execute_at == NOW + due * 1000

    @each_case(("mode", "due"), [(DelayMode.HONOR, 10), (DelayMode.QUEUE, 0)])
    @each_case("own", [{"delay": 10.0}, {"execute_time": NOW / 1000 + 10}], ids=["delay", "execute_time"])
    def test_without_a_default_a_tasks_own_delay_is_honored_or_ignored_by_mode(
        self, mode: DelayMode, due: int, own: dict[str, float]
    ) -> None:
        assert admit_draft(Policy(delay_mode=mode), **own).execute_at == NOW + due * 1000

    def test_an_ignored_delay_is_not_limited(self) -> None:
        policy = Policy(delay_mode=DelayMode.QUEUE, max_delay_ms=1, delays=False)
        assert admit_draft(policy, delay=10.0).execute_at == NOW

    @each_case("own", [{"delay": -1.0}, {"delay": 1e300}, {"execute_time": math.inf}])
    def test_a_wrong_delay_is_refused_even_if_it_would_be_ignored(self, own: dict[str, float]) -> None:
        assert [refuse_draft(Policy(delay_mode=DelayMode.QUEUE), **own).field] == list(own)

    def test_a_ttl_shorter_than_the_delay_is_accepted(self) -> None:
        task = admit_draft(ttl=60.0, delay=900.0)
        assert (task.execute_at, task.expires_at) == (NOW + 900_000, NOW + 60_000)


class TestNoDelays:
    @each_case("own", [{}, {"delay": 0.0}, {"execute_time": NOW / 1000}, {"execute_time": 0.0}])
    def test_a_task_due_at_once_is_accepted(self, own: dict[str, float]) -> None:
        assert admit_draft(Policy(delays=False), **own).execute_at == NOW

    @each_case("own", [{"delay": 0.001}, {"execute_time": NOW / 1000 + 0.001}, {"delay": 900.0}])
    def test_a_due_time_ahead_is_refused(self, own: dict[str, float]) -> None:
        refusal = refuse_draft(Policy(delays=False), **own)
        [field] = own
        assert (refusal.field, refusal.detail) == (
            field,
            f"{field}: expected none, for the topic's policy allows no delays",
        )

    def test_a_default_delay_ahead_is_refused(self) -> None:
        assert refuse_draft(Policy(delays=False, default_delay_ms=1)).field == "delay"


class TestTtl:
    def test_the_policys_ttl_applies_to_a_task_without_one(self) -> None:
        policy = Policy(ttl_ms=60_000)
        assert [admit_draft(policy).expires_at, admit_draft(policy, ttl=5.0).expires_at] == [NOW + 60_000, NOW + 5_000]

    def test_a_policys_ttl_of_zero_means_no_ttl(self) -> None:
        assert admit_draft(Policy(ttl_ms=0)).expires_at is None


def test_the_policy_is_found_by_the_canonical_name_of_the_topic() -> None:
    policies = Policies(
        Policy(), {topic_scope("x"): Settings({"retry": 7}), namespace_scope("shop"): Settings({"retry": 9})}
    )
    admitted_to = {
        name: admit(a_draft(topic=name), policies, NOW, FRESH_ID) for name in ("default/x", "x", "shop/x", "y")
    }
    assert {name: task.max_retry for name, task in admitted_to.items()} == {"default/x": 7, "x": 7, "shop/x": 9, "y": 3}
