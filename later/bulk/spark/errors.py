"""What goes wrong in Spark, in one line: who runs a job has no use for a traceback, a stack of Java or a plan."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from later.core.errors import LaterError

JAVA_GONE = "Spark's Java has ended, or does not answer: if its memory was full, give it more (spark.driver.memory)"
MAX_REASON_CHARS = 600
"""Characters of a reason."""

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$", re.MULTILINE)
_FAILED_TASK = re.compile(r"most recent failure: Lost task .*?\(TID \d+\) \([^)]*\): ")
_JAVA_CLASS = re.compile(r'^(?:Exception in thread "[^"]*" )?(?:(?:[a-z]\w*\.)+[\w$]+:|\((?:[a-z]\w*\.)+[\w$]+\)) ')
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_OF_FILE = ("[FAILED_READ_FILE", "[TASK_WRITE_FAILED")
_HALF_WRITTEN = re.compile(r"/_temporary/\S*[^\s.]")
_OVER = (
    "cancelled because SparkContext was shut down",
    "Cannot call methods on a stopped SparkContext",
    'because the return value of "org.apache.spark.SparkContext.',
)
"""What Spark says of whatever is asked of it while its Java ends."""
_STACK = "JVM stacktrace:"
_CAUSE = re.compile(r"^Caused by: (.*)", re.MULTILINE)
_STATE = re.compile(r"\s*SQLSTATE: \w{5}")


@contextmanager
def translate_errors() -> Iterator[None]:
    """Around whatever calls Spark.

    Raises:
        LaterError: in place of what Spark raised, with its reason. What a worker raised of our own comes in its words.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise LaterError(error_reason(error)) from error
    except (ConnectionError, EOFError) as error:  # what py4j lets through when nobody is there
        raise LaterError(JAVA_GONE) from error


def error_reason(error: BaseException) -> str:
    """Why it failed, in one line."""
    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):
        return JAVA_GONE  # whatever was called: there is nobody who could say why
    texts = list(_texts(error))
    raised = next((text for text in texts if _TRACEBACK in text), None)
    if raised is not None:
        return worker_error(raised)
    if any(words in texts[0] for words in _OVER):
        return JAVA_GONE
    return file_error(texts) if any(condition in texts[0] for condition in _OF_FILE) else spark_error(texts[0])


def worker_error(text: str) -> str:
    """The error at the end of a worker's traceback: its text where it is one of ours, else also what it was and where.

    Of a chain of errors the last: what was raised in the end.
    """
    last = text[text.rindex(_TRACEBACK) + len(_TRACEBACK) :]
    raised = _RAISED.search(last)
    if raised is None:
        return spark_error(text)
    if raised["type"].startswith("later."):
        return _one_line(raised["text"] or raised["type"])
    frames = list(_FRAME.finditer(last, 0, raised.start()))
    where = f" ({frames[-1]['file']}, line {frames[-1]['line']})" if frames else ""
    return _one_line(f"a worker failed: {raised[0]}") + where


def spark_error(text: str) -> str:
    """Spark's own words without class names, the code of the condition, its state, and the plan or stack below."""
    text = _without_stack(text).strip()
    failed = _FAILED_TASK.search(text)
    text = text[failed.end() :] if failed else text
    while match := _JAVA_CLASS.match(text) or _CONDITION.match(text):
        text = text[match.end() :]
    state = _STATE.search(text)
    return _one_line(text[: state.start()] if state else text.partition("\n")[0])


def _without_stack(text: str) -> str:
    """Of words that only announce what is in the stack (`Error while …:`), that: the last cause."""
    told, _, stack = text.partition(_STACK)
    causes = _CAUSE.findall(stack)
    return causes[-1] if causes and told.rstrip().endswith(":") else told


def file_error(texts: Sequence[str]) -> str:
    """Which file could not be read, or where none could be written, and why.

    Spark says the reason behind it, in several lines.
    """
    why = "" if len(texts) == 1 else _JAVA_CLASS.sub("", texts[-1])
    return _one_line(f"{_HALF_WRITTEN.sub('', spark_error(texts[0]))} {why}")


def _texts(error: BaseException) -> Iterator[str]:
    """What an error and those behind it say."""
    if not isinstance(error, Py4JJavaError):
        yield str(error)
        return
    java = error.java_exception
    while java is not None:
        yield str(java.toString())
        java = java.getCause()


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON_CHARS else line[: MAX_REASON_CHARS - 1] + "…"
