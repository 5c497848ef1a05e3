"""The outcome of a receiver's reply, whatever bytes it has."""

from __future__ import annotations

import json
import math
import unicodedata
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from urllib.parse import quote

from hypothesis import example, given
from hypothesis import strategies as st

from later.core.policy import Ack
from later.core.reply import Reply, parse_reply
from later.core.reply_headers import decode_reason, parse_later_after
from later.core.retry import Outcome, OutcomeKind
from later.core.retry_after import parse_retry_after
from later.core.validation import MAX_AHEAD_MS
from tests.builders import NOW
from tests.cases import each_case

OTHER_STATUSES = sorted({*range(100, 200), *range(300, 600)} - {410, 429, 503})


def parse(
    status: int, body: bytes | None = b"", retry_after: str | None = None, ack: Ack = Ack.AUTO, **headers: str
) -> Outcome:
    return parse_reply(Reply(status=status, body=body, retry_after=retry_after, **headers), NOW, ack)


class TestStatus:
    def test_a_status_of_2xx_is_done(self) -> None:
        statuses = range(200, 300)
        assert [*map(parse, statuses)] == [Outcome(kind=OutcomeKind.DONE, status=status) for status in statuses]

    @each_case("status", [429, 503])
    def test_429_and_503_are_busy(self, status: int) -> None:
        assert parse(status) == Outcome(
            kind=OutcomeKind.BUSY, reason="status", status=status, message=f"answered {status}"
        )

    def test_410_is_gone(self) -> None:
        assert parse(410) == Outcome(
            kind=OutcomeKind.GONE, reason="status", status=410, message="answered 410: gone for good"
        )

    def test_any_other_status_is_failed(self) -> None:
        assert [*map(parse, OTHER_STATUSES)] == [
            Outcome(kind=OutcomeKind.FAILED, reason="status", status=status, message=f"answered {status}")
            for status in OTHER_STATUSES
        ]

    @each_case(
        ("status", "kind"),
        [
            (301, OutcomeKind.FAILED),
            (404, OutcomeKind.FAILED),
            (500, OutcomeKind.FAILED),
            (503, OutcomeKind.BUSY),
            (410, OutcomeKind.GONE),
        ],
    )
    def test_a_code_counts_only_with_2xx(self, status: int, kind: OutcomeKind) -> None:
        assert parse(status, b'{"code": 100}').kind is kind


class TestCode:
    @each_case(
        "body",
        [b'{"code": 100}', b'{"code":100}', b' {"code": 100, "msg": "ok"}\r\n', b'{"c\\u006fde": 100}'],
    )
    def test_code_100_is_done(self, body: bytes) -> None:
        assert parse(200, body) == Outcome(kind=OutcomeKind.DONE, status=200)

    @each_case("status", [200, 202, 299])
    def test_code_101_is_busy(self, status: int) -> None:
        assert parse(status, b'{"code": 101}') == Outcome(
            kind=OutcomeKind.BUSY, reason="code", status=status, message="answered code 101: busy"
        )

    @each_case("code", [0, -1, 99, 102, 200, 1000, 2**63, -(2**63) - 1, 10**400])
    def test_any_other_code_is_failed(self, code: int) -> None:
        assert parse(200, json.dumps({"code": code}).encode()) == Outcome(
            kind=OutcomeKind.FAILED, reason="code", status=200, message=f"answered code {code}"
        )

    @each_case(
        "code",
        ["100.0", "1e2", '"100"', '"101"', "true", "false", "null", "[100]", '{"code": 100}', '""', "100.5"],
    )
    def test_a_code_that_is_not_an_integer_is_failed(self, code: str) -> None:
        assert parse(200, f'{{"code": {code}}}'.encode()) == Outcome(
            kind=OutcomeKind.FAILED, reason="code", status=200, message="answered code that is no integer"
        )

    @each_case(
        "body",
        [
            None,
            b"",
            b" ",
            b"ok",
            b"100",
            b'"code"',
            b"null",
            b"true",
            b"[]",
            b'[{"code": 101}]',
            b"{}",
            b'{"Code": 101}',
            b'{"data": {"code": 101}}',
            b'{"code": 101',
            b'{"code": 101} and more',
            b"code=101",
            b"\xff\xfe\xfd",
            b'{"code": 101, "msg": "\xff"}',
            b"\x1f\x8b\x08\x00",
            b"<html></html>",
            b"[" * 65_536,
            b'{"a":' * 10_000,
        ],
    )
    def test_a_body_without_a_code_is_done(self, body: bytes | None) -> None:
        assert parse(200, body) == Outcome(kind=OutcomeKind.DONE, status=200)

    @each_case(
        "body",
        [
            b'{"msg": "cut in a \\ud83d", "code": 102}',
            b'{"figure": 1e400, "code": 102}',
            b'{"figure": 123456789012345678901234567890, "code": 102}',
            '{"msg": "grüße 🦔", "code": 102}'.encode(),
            b'{"code": 100, "code": 102}',
        ],
    )
    def test_a_code_is_found_among_other_fields(self, body: bytes) -> None:
        assert parse(200, body).message == "answered code 102"


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)
NOT_DONE = [(429, b""), (503, b""), (200, b'{"code": 101}'), (500, b""), (404, b""), (200, b'{"code": 7}'), (307, b"")]


class TestLaterAfter:
    @each_case(("status", "body"), NOT_DONE)
    def test_a_receiver_may_ask_for_a_pause_of_this_task_alone(self, status: int, body: bytes) -> None:
        assert parse(status, body, later_after="1.5").later_after_ms == 1500

    @each_case(("status", "body"), NOT_DONE)
    def test_later_after_wins_over_retry_after(self, status: int, body: bytes) -> None:
        outcome = parse(status, body, retry_after="120", later_after="5")
        assert (outcome.later_after_ms, outcome.retry_after_ms) == (5000, None)

    def test_a_later_after_that_cannot_be_read_leaves_retry_after(self) -> None:
        outcome = parse(503, b"", retry_after="120", later_after="soon")
        assert (outcome.later_after_ms, outcome.retry_after_ms) == (None, 120_000)

    def test_what_is_done_is_done_whatever_its_headers_say(self) -> None:
        outcome = parse(200, b'{"code": 100}', later_after="5", later_reason="x")
        assert outcome == Outcome(kind=OutcomeKind.DONE, status=200)

    @each_case(
        ("text", "pause_ms"),
        [
            ("0", 0),
            ("0.0", 0),
            ("1", 1000),
            (" 7 ", 7000),
            ("007", 7000),
            ("0.0351", 36),
            ("1e-05", 1),
            ("1E+2", 100_000),
            ("259200", 259_200_000),
            ("315619200", MAX_AHEAD_MS),
            ("315619200.001", MAX_AHEAD_MS),
            ("1e999", MAX_AHEAD_MS),
            ("9" * 5000, MAX_AHEAD_MS),
        ],
    )
    def test_a_pause_is_a_number_of_seconds_up_to_ten_years(self, text: str, pause_ms: int) -> None:
        assert parse_later_after(text) == pause_ms

    @each_case(
        "text",
        ["", " ", "soon", "-5", "+5", "5s", "1,5", "1.", ".5", "nan", "inf", "0x10", "1_0", "٣", "5, 6", "\x00",
         "\udcff", "Fri, 15 Jan 2027 08:01:00 GMT"],
    )  # fmt: skip
    def test_any_other_text_is_no_pause(self, text: str) -> None:
        assert parse_later_after(text) is None

    @given(st.integers(0, MAX_AHEAD_MS))
    def test_a_whole_number_of_milliseconds_is_kept(self, ms: int) -> None:
        assert parse_later_after(repr(ms / 1000)) == ms

    @given(st.floats() | st.integers())
    def test_any_number_is_a_pause_within_bounds_or_none(self, number: float) -> None:
        pause_ms = parse_later_after(str(number))
        assert (
            pause_ms is None
            if math.isnan(number) or math.copysign(1, number) < 0 or math.isinf(number)
            else (0 <= (pause_ms or 0) <= MAX_AHEAD_MS and pause_ms is not None)
        )


class TestLaterReason:
    @each_case(("status", "body"), [*NOT_DONE, (410, b"")])
    def test_a_reason_is_the_message(self, status: int, body: bytes) -> None:
        outcome = parse(status, body, later_reason="KeyError: %27amount%27")
        assert (outcome.message, outcome.status) == ("KeyError: 'amount'", status)

    @each_case("text", ["", " ", "%20%0A"])
    def test_an_empty_reason_is_none(self, text: str) -> None:
        assert parse(500, later_reason=text).message == "answered 500"

    @each_case(
        ("text", "reason"),
        [
            ("gr%C3%BC%C3%9Fe%20%F0%9F%A6%94", "grüße 🦔"),
            ("grüße", "grüße"),
            ("a+b", "a+b"),
            ("100%", "100%"),
            ("%zz%4", "%zz%4"),
            ("line%201%0D%0A%20line%202%09.", "line 1 line 2 ."),
            ("%1B%5B31mred%7F%C2%9B", "\ufffd[31mred\ufffd\ufffd"),
            ("%00", "\ufffd"),
            ("%FF%C3", "\ufffd\ufffd"),
            ("%ED%A0%80", "\ufffd\ufffd\ufffd"),
            ("%E2%80%AEevil", "\ufffdevil"),
            ("caf\udce9 \ud800", "caf\ufffd \ufffd"),
        ],
    )
    def test_a_reason_is_one_line_of_percent_encoded_utf_8(self, text: str, reason: str) -> None:
        assert decode_reason(text) == reason

    @each_case(("length", "kept"), [(200, "ü" * 200), (201, "ü" * 199 + "…")])
    def test_a_reason_has_200_characters(self, length: int, kept: str) -> None:
        assert decode_reason("%C3%BC" * length) == kept

    @given(ANY_TEXT)
    def test_any_text_comes_back_if_it_is_one_line_of_printable_characters(self, text: str) -> None:
        decoded = decode_reason(quote(text, errors="replace"))
        if text.isprintable():
            assert decoded == " ".join(text.split())[:200]

    @given(ANY_TEXT | st.binary().map(quote))
    def test_a_reason_can_be_stored_and_shown_in_one_line(self, text: str) -> None:
        reason = decode_reason(text)
        assert len(reason.encode()) >= len(reason) <= 200
        assert not any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in reason)


class TestLocation:
    @each_case(
        ("location", "target"),
        [
            ("/later/", "/later/"),
            ("https://h:8443/a/b?token=s3cret#s3cret", "https://h:8443/a/b"),
            ("https://user:s3cret@h/a", "https://h/a"),
            ("//user:s3cret@h/a", "//h/a"),
            ("../up", "../up"),
            ("/a\x1b[31m", "/a\ufffd[31m"),
            ("/" + "x" * 200, "/" + "x" * 98 + "…"),
        ],
    )
    @each_case("status", [300, 301, 302, 303, 307, 308])
    def test_the_message_of_a_redirect_says_where_it_points(self, status: int, location: str, target: str) -> None:
        message = parse(status, location=location).message
        assert message == f"answered {status}, which points to {target}: redirects are not followed"

    @each_case("location", ["", "?token=s3cret", "#s3cret", "http://[::1", "http://[s3cret]/"])
    def test_a_location_that_says_nothing_is_left_out(self, location: str) -> None:
        assert parse(302, location=location).message == "answered 302"

    @each_case("status", [404, 500])
    def test_only_a_redirect_points_somewhere(self, status: int) -> None:
        assert parse(status, location="/later/").message == f"answered {status}"

    @given(ANY_TEXT)
    def test_any_location_has_a_message(self, location: str) -> None:
        assert parse(302, location=location).message.startswith("answered 302")


class TestRetryAfter:
    @each_case(("status", "body"), [(429, b""), (503, b""), (503, None), (200, b'{"code": 101}')])
    def test_a_busy_receiver_may_ask_for_a_pause(self, status: int, body: bytes | None) -> None:
        assert parse(status, body, retry_after="120").retry_after_ms == 120_000

    @each_case(("status", "body"), [(200, b""), (500, b""), (410, b""), (200, b'{"code": 102}')])
    def test_only_a_busy_receiver_may_ask_for_a_pause(self, status: int, body: bytes) -> None:
        assert parse(status, body, retry_after="120").retry_after_ms is None

    @each_case(
        ("text", "pause_ms"),
        [
            ("0", 0),
            ("1", 1_000),
            (" 120 ", 120_000),
            ("007", 7_000),
            ("0" * 20 + "7", 7_000),
            ("86400", 86_400_000),
        ],
    )
    def test_seconds_are_a_pause(self, text: str, pause_ms: int) -> None:
        assert parse_retry_after(text, NOW) == pause_ms

    def test_a_huge_number_of_seconds_is_still_a_pause(self) -> None:
        assert (parse_retry_after("9" * 5000, NOW) or 0) > 86_400_000

    @each_case(
        "text",
        [
            "Fri, 15 Jan 2027 08:01:00 GMT",
            "Fri, 15 Jan 2027 08:01:00 +0000",
            "Fri, 15 Jan 2027 09:01:00 +0100",
            "Fri, 15 Jan 2027 08:01:00 -0000",
            "Friday, 15-Jan-27 08:01:00 GMT",
            "Fri Jan 15 08:01:00 2027",
        ],
    )
    def test_a_date_is_a_pause_until_then(self, text: str) -> None:
        assert parse_retry_after(text, NOW) == 60_000

    @each_case("text", ["Sun, 06 Nov 1994 08:49:37 GMT", "Fri, 15 Jan 2027 08:00:00 GMT"])
    def test_a_past_date_is_no_pause(self, text: str) -> None:
        assert parse_retry_after(text, NOW) == 0

    @each_case(
        "text",
        [
            "",
            " ",
            "soon",
            "-5",
            "+5",
            "1.5",
            "1e3",
            "5s",
            "0x10",
            "٣",
            "²",
            "120, 240",
            "Sun, 99 Nov 1994 08:49:37 GMT",
            "06 Nov 99999 08:49:37 GMT",
            "\x00",
            "\udcff",
        ],
    )
    def test_any_other_text_is_ignored(self, text: str) -> None:
        assert parse_retry_after(text, NOW) is None

    @given(
        st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9000, 1, 1)),
        st.integers(-12 * 60, 14 * 60),
    )
    def test_any_date_in_any_zone_is_read_to_the_second(self, moment: datetime, offset: int) -> None:
        zoned = moment.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=offset)))
        expected = max(int(zoned.timestamp()) * 1000 - NOW, 0)
        assert parse_retry_after(format_datetime(zoned), NOW) == expected


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("code"), inner, max_size=3),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())
DATE_PARTS = ["Sun, ", "06 ", "Nov ", "1994 ", "08:49:37 ", "GMT", "+0100", "99999", "-1", *"-:,();.\t\0٣"]
DATE_LIKE = st.lists(st.sampled_from(DATE_PARTS), max_size=12).map("".join)


class TestAnyReply:
    @given(
        st.integers(-1, 1000),
        st.none() | st.binary() | JSON_LIKE,
        st.none() | ANY_TEXT | DATE_LIKE | st.integers().map(str),
        st.none() | ANY_TEXT,
        st.none() | ANY_TEXT,
        st.integers(-(2**62), 2**62),
    )
    @example(200, b'{"code": ' + b"1" * 5000 + b"}", None, None, None, NOW)
    def test_any_reply_has_an_outcome(
        self,
        status: int,
        body: bytes | None,
        retry_after: str | None,
        later_after: str | None,
        text: str | None,
        now: int,
    ) -> None:
        reply = Reply(
            status=status, body=body, retry_after=retry_after, later_after=later_after, later_reason=text, location=text
        )
        assert parse_reply(reply, now, Ack.AUTO).status == status

    @given(JSON_LIKE)
    def test_json_means_what_pythons_decoder_makes_of_it(self, body: bytes) -> None:
        fields = json.loads(body)
        code = fields.get("code", 100) if isinstance(fields, dict) else 100
        is_integer = isinstance(code, int) and not isinstance(code, bool)
        kinds = {100: OutcomeKind.DONE, 101: OutcomeKind.BUSY}
        assert parse(200, body).kind is (kinds.get(code, OutcomeKind.FAILED) if is_integer else OutcomeKind.FAILED)

    @given(ANY_TEXT | DATE_LIKE, st.integers(-(2**62), 2**62))
    @example("06 Nov 1994 00:00:00 +" + "9" * 5000, NOW)
    def test_a_pause_is_never_negative(self, text: str, now: int) -> None:
        assert (parse_retry_after(text, now) or 0) >= 0

    def test_the_dates_in_these_tests_count_from_now(self) -> None:
        assert datetime.fromtimestamp(NOW / 1000, UTC).isoformat() == "2027-01-15T08:00:00+00:00"


class TestAck:
    @each_case("body", [None, b"", b"ok", b"[100]", b'{"status": "done"}'])
    def test_with_ack_code_a_reply_without_a_code_has_failed(self, body: bytes | None) -> None:
        outcome = parse(200, body, ack=Ack.CODE)
        assert (outcome.kind, outcome.reason, outcome.message) == (
            OutcomeKind.FAILED, "code", "answered 200 without a code",
        )  # fmt: skip

    @each_case(
        ("code", "kind"),
        [
            ("100", OutcomeKind.DONE),
            ("101", OutcomeKind.BUSY),
            ("102", OutcomeKind.FAILED),
            ('"100"', OutcomeKind.FAILED),
        ],
    )
    def test_with_ack_code_a_code_means_the_same(self, code: str, kind: OutcomeKind) -> None:
        assert parse(200, b'{"code": %s}' % code.encode(), ack=Ack.CODE).kind is kind

    @each_case("code", ["100", "101", "102", "null"])
    def test_with_ack_status_the_body_is_ignored(self, code: str) -> None:
        assert parse(204, b'{"code": %s}' % code.encode(), ack=Ack.STATUS).kind is OutcomeKind.DONE

    @each_case("ack", Ack)
    @each_case(
        ("status", "kind"),
        [
            (429, OutcomeKind.BUSY),
            (503, OutcomeKind.BUSY),
            (410, OutcomeKind.GONE),
            (302, OutcomeKind.FAILED),
            (500, OutcomeKind.FAILED),
        ],
    )
    def test_other_statuses_mean_the_same_whatever_the_ack(self, ack: Ack, status: int, kind: OutcomeKind) -> None:
        assert parse(status, b'{"code": 100}', ack=ack).kind is kind
