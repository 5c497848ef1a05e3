"""Spark's errors in one line, without tracebacks, Java's stacks and query plans."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from later.core.errors import LaterError

JAVA_GONE = "Spark's Java has ended, or does not answer: if its memory was full, give it more (spark.driver.memory)"
MAX_REASON_CHARS = 600
"""Longer reasons are cut."""

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
        LaterError: Spark failed; the text is its reason, or that of later's own error in a worker.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise LaterError(error_reason(error)) from error
    except (ConnectionError, EOFError) as error:  # py4j raises these when Java has gone
        raise LaterError(JAVA_GONE) from error


def error_reason(error: BaseException) -> str:
    """Return the reason of an error in one line."""
    texts: list[str] = []
    if isinstance(error, Py4JJavaError):
        java = error.java_exception
        while java is not None:
            texts.append(str(java.toString()))
            java = java.getCause()
    elif isinstance(error, Py4JError):
        return JAVA_GONE  # no Java is left that could answer a call
    else:
        texts.append(str(error))
    traceback = next((text for text in texts if _TRACEBACK in text), None)
    if traceback is not None:
        return worker_error(traceback)
    if any(words in texts[0] for words in _STOPPING):
        return JAVA_GONE
    return file_error(texts) if any(condition in texts[0] for condition in _FILE_CONDITIONS) else spark_error(texts[0])


def worker_error(text: str) -> str:
    """Return the last error of a worker's traceback: an error of later's own as its text, others with type and line."""
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
