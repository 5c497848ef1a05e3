"""The answers of receivers to the call of `later check --verify`."""

from __future__ import annotations

from later.core.receiver_answer import read_receiver_answer
from later.core.reply import Reply
from tests.cases import each_case


@each_case(
    "reply, topics",
    [
        (Reply(status=204, body=b"", later_topics="shop/gr%C3%B6%C3%9Fe,a%2Cb,old"), ("shop/größe", "a,b", "old")),
        (Reply(status=200, body=b"", later_topics="order"), ("order",)),
    ],
)
def test_the_topics_of_a_receiver_are_read(reply: Reply, topics: tuple[str, ...]) -> None:
    assert read_receiver_answer(reply, is_signed=True) == (topics, "", reply.status)


@each_case(
    "reply, is_signed, text",
    [
        (Reply(status=204, body=b"", later_topics=""), True, "has no handlers: is their module imported?"),
        (Reply(status=200, body=b"{}"), True, "answered 200 without later-topics: it is none of the Python library"),
        (Reply(status=307, body=b"", location="http://u:p@a/later/?q"), True,
         "answered 307, which points to http://a/later/: redirects are not followed"),
        (Reply(status=304, body=b""), True, "answered 304: redirects are not followed"),
        (Reply(status=401, body=b""), True, "it does not accept the signature: give it the secret"),
        (Reply(status=401, body=b""), False, "it wants signed calls, but nothing signs here: --signing-key FILE"),
        (Reply(status=403, body=b""), True, "something before the receiver forbids the call"),
        (Reply(status=404, body=b""), True, "nothing is at this path: give the callback the path of `receive`"),
        (Reply(status=405, body=b""), True, "takes no POST"),
        (Reply(status=500, body=b"", later_reason="out%20of%20order"), True, "answered 500: out of order"),
        (Reply(status=418, body=b""), True, "the receiver answered 418"),
    ],
)  # fmt: skip
def test_another_answer_says_what_to_do(reply: Reply, is_signed: bool, text: str) -> None:
    answer = read_receiver_answer(reply, is_signed=is_signed)
    assert not answer.topics
    assert answer.status == reply.status
    assert answer.detail.startswith("the receiver ")
    assert text in answer.detail
