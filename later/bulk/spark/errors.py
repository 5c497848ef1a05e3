"""Spark's errors in one line, without tracebacks, Java's stacks and query plans."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from later.client.http import NotReached, TargetFull
from later.core.errors import (
    CallFailed,
    ConfigError,
    InputUnreadable,
    LaterError,
    Refused,
    StoreDown,
    StoreEmpty,
    StoreMismatch,
)

JAVA_GONE = "Spark's Java has ended, or does not answer: if its memory was full, give it more (spark.driver.memory)"
MAX_REASON_CHARS = 600
"""Longer reasons are cut."""
_OWN_ERRORS: dict[str, Callable[[str], LaterError]] = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (NotReached, TargetFull, CallFailed, Refused, ConfigError, StoreDown, StoreMismatch, StoreEmpty)
}
"""The errors that a worker may raise, by their name in its traceback."""
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$", re.MULTILINE)
_FAILED_TASK = re.compile(r"most recent failure: Lost task .*?\(TID \d+\) \([^)]*\): ")
_JAVA_CLASS = re.compile(r'^(?:Exception in thread "[^"]*" )?(?:(?:[a-z]\w*\.)+[\w$]+:|\((?:[a-z]\w*\.)+[\w$]+\)) ')
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_FILE_CONDITIONS = ("[FAILED_READ_FILE", "[TASK_WRITE_FAILED")
_TEMPORARY_PATH = re.compile(r"/_temporary/\S*[^\s.]")
_STOPPING = (
    "cancelled because SparkContext was shut down",
    "Cannot call methods on a stopped SparkContext",
    'because the return value of "org.apache.spark.SparkContext.',
)
"""Texts of errors that Spark raises for any call while its Java ends."""
_STACK = "JVM stacktrace:"
_CAUSE = re.compile(r"^Caused by: (.*)", re.MULTILINE)
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}")


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate the errors of Spark's calls.

    Raises:
        InputUnreadable: There is no such input, or Spark cannot read it.
        LaterError: Spark failed; the text is its reason. An error of later's own in a worker is raised as what it was.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise translated_error(error) from error
    except (ConnectionError, EOFError) as error:  # py4j raises these when Java has gone
        raise LaterError(JAVA_GONE) from error


def translated_error(error: BaseException) -> LaterError:
    """Return later's error for one of Spark's."""
    texts, reason = _error_texts(error), error_reason(error)
    raised = next((found for text in texts if (found := _raised_in_worker(text)) is not None), None)
    if raised is not None:
        return _OWN_ERRORS.get(raised["type"], LaterError)(reason)
    is_of_input = isinstance(error, AnalysisException) or any("[FAILED_READ_FILE" in text for text in texts)
    return InputUnreadable(reason) if is_of_input else LaterError(reason)


def error_reason(error: BaseException) -> str:
    """Return the reason of an error in one line."""
    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):
        return JAVA_GONE  # no Java is left that could answer a call
    texts = _error_texts(error)
    traceback = next((text for text in texts if _TRACEBACK in text), None)
    if traceback is not None:
        return worker_error(traceback)
    if any(words in texts[0] for words in _STOPPING):
        return JAVA_GONE
    return file_error(texts) if any(condition in texts[0] for condition in _FILE_CONDITIONS) else spark_error(texts[0])


def _error_texts(error: BaseException) -> list[str]:
    """Return the text of an error, and those of its causes in Java."""
    if not isinstance(error, Py4JJavaError):
        return [str(error)]
    texts: list[str] = []
    java = error.java_exception
    while java is not None:
        texts.append(str(java.toString()))
        java = java.getCause()
    return texts


def _raised_in_worker(text: str) -> re.Match[str] | None:
    """Return the last error of a worker's traceback, if there is one in the text."""
    start = text.rfind(_TRACEBACK)
    return None if start < 0 else _RAISED.search(text, start + len(_TRACEBACK))


def worker_error(text: str) -> str:
    """Return the last error of a worker's traceback: an error of later's own as its text, others with type and line."""
    raised = _raised_in_worker(text)
    if raised is None:
        return spark_error(text)
    if raised["type"].startswith("later."):
        return _one_line(raised["text"] or raised["type"])
    frames = list(_FRAME.finditer(text, text.rindex(_TRACEBACK), raised.start()))
    where = f" ({frames[-1]['file']}, line {frames[-1]['line']})" if frames else ""
    return _one_line(f"a worker failed: {raised[0]}") + where


def spark_error(text: str) -> str:
    """Return Spark's text without class names, the condition's code, its SQLSTATE, and the plan or stack below.

    A text that only announces the stack (`Error while …:`) is replaced by the last cause in the stack.
    """
    message, _, stack = text.partition(_STACK)
    causes = _CAUSE.findall(stack)
    message = (causes[-1] if causes and message.rstrip().endswith(":") else message).strip()
    failed = _FAILED_TASK.search(message)
    message = message[failed.end() :] if failed else message
    while match := _JAVA_CLASS.match(message) or _CONDITION.match(message):
        message = message[match.end() :]
    sqlstate = _SQLSTATE.search(message)
    return _one_line(message[: sqlstate.start()] if sqlstate else message.partition("\n")[0])


def file_error(texts: Sequence[str]) -> str:
    """Return the file that could not be read or written, and the reason, which Spark has in the last cause."""
    cause = "" if len(texts) == 1 else _JAVA_CLASS.sub("", texts[-1])
    return _one_line(f"{_TEMPORARY_PATH.sub('', spark_error(texts[0]))} {cause}")


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON_CHARS else line[: MAX_REASON_CHARS - 1] + "…"
