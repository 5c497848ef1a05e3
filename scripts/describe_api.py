"""Write docs/openapi.json and docs/api.md: the description that a daemon serves, and the same for people.

python -m scripts.describe_api http://127.0.0.1:8080
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

DOCS = Path(__file__).parent.parent / "docs"
HEAD = """# The API, operation by operation

Made from the description that every daemon serves at `/openapi.json` ([openapi.json](openapi.json), OpenAPI 3.1), by
`scripts/describe_api.py`. [README.md](../README.md#the-api) is the way in; what answers mean, says
[answers.md](answers.md).

Named below are the errors of an operation's own. Every one may also answer `refused`, `cross-site`, `fault` and
`store-away`; with a body `slow-body`, `too-large` and `unsupported`; and if the daemon has keys `no-key`, `not-allowed`
and `too-often`. [What they mean](operations.md#errors-of-the-api)
"""
COMMON = {
    "refused", "cross-site", "fault", "store-away", "slow-body", "too-large", "unsupported", "no-key", "not-allowed",
    "too-often",
}  # fmt: skip
"""The types of problems that need no mention at each operation."""


def main(url: str) -> None:
    with urlopen(f"{url}/openapi.json") as answer:
        document = json.load(answer)
    (DOCS / "openapi.json").write_text(json_text(document))
    (DOCS / "api.md").write_text(markdown_text(document))


def json_text(document: Mapping[str, Any]) -> str:
    """Return the document as it is kept in docs/."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def markdown_text(document: Mapping[str, Any]) -> str:
    """Return the document for people."""
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    parts = [HEAD]
    for tag in document["tags"]:
        found = [each for each in operations if tag["name"] in each[2]["tags"]]
        if found:
            parts.append(f"## {tag['name'].capitalize()}\n\n{tag['description']}\n")
        parts += [_operation_text(document, *each) for each in found]
    return "\n".join(parts)


def _operation_text(document: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]) -> str:
    lines = [f"### `{method} {path}`", "", " ".join([operation["summary"], *_scope_texts(operation)])]
    lines += _parameter_lines([each for each in operation["parameters"] if each["in"] == "query"])
    body = operation.get("requestBody")
    if body is not None:
        lines += _body_lines(document, body["content"]["application/json"], body.get("description", ""))
    lines += ["", *_answer_lines(operation["responses"])]
    return "\n".join(lines) + "\n"


def _scope_texts(operation: Mapping[str, Any]) -> Iterator[str]:
    scopes = [scope for each in operation["security"] for scope in each.get("key", ())]
    if scopes:
        yield f"Needs {' and '.join(f'`{scope}`' for scope in scopes)}."


def _parameter_lines(parameters: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if parameters:
        yield from ("", "| in the query | |", "|---|---|")
        yield from (f"| `{each['name']}` | {each['description']} |" for each in parameters)


def _body_lines(document: Mapping[str, Any], content: Mapping[str, Any], description: str) -> Iterator[str]:
    schema = _resolve(document, content["schema"])
    if schema["type"] == "array":
        name = schema["items"]["$ref"].rpartition("/")[2]
        yield from ("", f"An array of up to {schema['maxItems']:,} bodies of `{name}`. {description}")
    elif schema["properties"]:
        required = schema.get("required", ())
        yield from ("", "| in the body | |", "|---|---|")
        for name, field in schema["properties"].items():
            text = field.get("description", "").replace("|", "\\|")
            yield f"| `{name}`{' (required)' if name in required else ''} | {text} |"
    if "example" in content:
        yield from ("", f"`{json.dumps(content['example'], ensure_ascii=False)}`")


def _answer_lines(responses: Mapping[str, Any]) -> Iterator[str]:
    done = responses.get("200")
    if done is None:
        yield "Answers 204."
    else:
        content = next(iter(done["content"].values()))["schema"]
        name = content.get("$ref", "").rpartition("/")[2]
        yield f"Answers `{name}`." if name else "Answers text."
    names = [
        name
        for response in responses.values()
        for name in response.get("$ref", "").rpartition("/")[2].split(".")
        if name and name not in COMMON
    ]
    if names:
        yield f"Errors: {', '.join(f'`{name}`' for name in names)}."


def _resolve(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema["$ref"].rpartition("/")[2]
    found: Mapping[str, Any] = document["components"]["schemas"][name]
    return found


if __name__ == "__main__":
    main(sys.argv[1])
