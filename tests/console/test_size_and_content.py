"""The console's own files: small, without what could run text as code, and complete in a wheel."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import later
from later.console.static_files import INDEX, read_static_files
from tests.cases import each_case

STATIC = Path(later.__file__).parent / "console" / "static"
VENDOR = STATIC / "vendor"
MAX_VENDOR_BYTES = 20_000
MAX_OWN_BYTES = 275_000
MAX_PAGE_BYTES = 64_700
"""What a browser loads for one page, compressed: what all pages share, the page's own modules, and the framework."""
MAX_LINES = 300

FORBIDDEN = {
    "markup from text": r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|srcdoc",
    "a parser of markup": r"DOMParser|createContextualFragment|document\.write",
    "code from text": r"\beval\b|new Function|setTimeout\(['\"]|setInterval\(['\"]|javascript:",
    "an inline style": r"\bstyle=|<style|setAttribute\(['\"]style",
    "an inline handler of events": r"<[a-z][^>]*\son[a-z]+=[\"']",
    "an inline script": r"<script(?![^>]*\bsrc=)",
    "an import that is no file": r"""(?:from|import\(?) ?["'](?!\.)""",
    "something from elsewhere": r"""(?:src|href|url|fetch|import)\W{1,3}(?:https?:)?//""",
    "what keeps data in the browser": r"sessionStorage|indexedDB|document\.cookie",
}
"""What must not be in our own files, as patterns."""


def own_files() -> list[Path]:
    """Return the files that are ours and are sent to a browser."""
    return [file for file in sorted(STATIC.rglob("*")) if file.is_file() and VENDOR not in file.parents]


def size(files: list[Path]) -> int:
    return sum(len(file.read_bytes()) for file in files)


def imported_by(module: Path) -> set[Path]:
    """Return a module and all that it imports when it is loaded."""
    found, rest = {module}, [module]
    while rest:
        importer = rest.pop()
        for name in re.findall(r'^(?:import|export|\}) ?.*from "(\..*)";$', importer.read_text(), re.MULTILINE):
            imported = (importer.parent / name).resolve()
            if imported not in found:
                found.add(imported)
                rest.append(imported)
    return found


def test_the_console_is_small() -> None:
    assert size(sorted(VENDOR.glob("*.js"))) <= MAX_VENDOR_BYTES
    assert size(own_files()) <= MAX_OWN_BYTES


def styles_in(text: str, pattern: str) -> set[Path]:
    """Return the stylesheets that a file loads."""
    return {STATIC / "css" / f"{name}.css" for name in re.findall(pattern, text)}


def loaded_by(page: Path) -> set[Path]:
    """Return all that a browser loads for a page: what all pages share, and the page's own modules and styles."""
    shared = imported_by(STATIC / "app.js") | set(STATIC.glob("*.*"))
    styles = styles_in((STATIC / "index.html").read_text(), r"css/(\w+)\.css")
    return shared | imported_by(page) | styles | styles_in(page.read_text(), r'loadStyles\("(\w+)"\)')


def test_the_page_asks_at_once_for_all_modules_that_every_page_needs() -> None:
    page = read_static_files({"static": "/console/static"})[INDEX].content.decode()
    preloaded = re.findall(r'rel="modulepreload" href="/console/static/([\w/]+\.js)"', page)
    assert {STATIC / path for path in preloaded} == imported_by(STATIC / "app.js") - {STATIC / "app.js"}


def test_each_page_loads_little() -> None:
    large = {}
    for page in (STATIC / "pages").glob("*.js"):
        assert VENDOR / "preact.js" in loaded_by(page)
        loaded = sum(len(gzip.compress(file.read_bytes())) for file in loaded_by(page))
        if loaded > MAX_PAGE_BYTES:
            large[page.name] = loaded
    assert not large


def test_every_style_is_used() -> None:
    code = "\n".join(file.read_text() for file in own_files() if file.suffix in (".js", ".html"))
    assert {name for name in class_names() if not is_named(name, code)} == set()


def test_every_text_is_used() -> None:
    code = {file: file.read_text() for file in own_files() if file.suffix == ".js"}
    for file in [STATIC / "lib" / "words.js", *(STATIC / "lib" / "words").glob("*.js")]:
        text = re.sub(r"\blimits: \{\n.*?\n  \}", "", code[file], flags=re.DOTALL)  # by the keywords of a schema
        others = "\n".join(other for path, other in code.items() if path != file)
        keys = re.findall(r"[{,\n] *\"?([a-z]\w+)\"?: ", text)
        assert [key for key in keys if not is_named(key, others)] == [], file.name


def class_names() -> set[str]:
    """Return the classes that styles are for."""
    texts = (
        re.sub(r"/\*.*?\*/|\{[^{}]*\}", "{}", file.read_text(), flags=re.DOTALL) for file in STATIC.glob("css/*.css")
    )
    return {name for text in texts for name in re.findall(r"\.([a-zA-Z][\w-]*)", text)}


def is_named(name: str, code: str) -> bool:
    """Return True if code names a class or a text, or makes such names: `level-${level}`, `${action}Title`."""
    first, _, rest = name.partition("-")
    made = [rf"(?<![\w-]){re.escape(name)}(?![\w-])"]
    made += [rf"(?<![\w-]){re.escape(first)}-\$\{{"] if rest else []
    made += [rf"\}}{end[0]}`" for end in re.finditer(r"[A-Z][a-z]+$", name)]
    return re.search("|".join(made), code) is not None


def test_a_class_that_no_file_uses_is_found() -> None:
    assert not is_named("of-nothing", "a class of-nothing-else, not-of-nothing, `on-${x}`")
    assert is_named("level-ok", "`level-${level}`")
    assert is_named("pauseTitle", "words[`${action}Title`]")


def test_no_file_is_long() -> None:
    long = {file.name: lines for file in own_files() if (lines := len(file.read_text().splitlines())) > MAX_LINES}
    assert not long


@each_case("forbidden", FORBIDDEN)
def test_no_file_holds(forbidden: str) -> None:
    pattern = re.compile(FORBIDDEN[forbidden])
    found = {
        f"{file.relative_to(STATIC)}: {line.strip()[:100]}"
        for file in own_files()
        for line in file.read_text().splitlines()
        if pattern.search(line)
    }
    assert not found


@each_case(
    ("forbidden", "text"),
    [
        ("markup from text", "node.innerHTML = x"),
        ("a parser of markup", "document.write(x)"),
        ("code from text", 'html`<a href="javascript:x">`'),
        ("code from text", "eval(x)"),
        ("an inline style", "html`<p style=${x}>`"),
        ("an inline handler of events", '<body onload="x()">'),
        ("an inline script", "<script>x()</script>"),
        ("an import that is no file", 'import { h } from "preact"'),
        ("an import that is no file", 'import("preact")'),
        ("something from elsewhere", '<script src="//cdn.example/x.js">'),
        ("something from elsewhere", "fetch('https://example.com/')"),
        ("what keeps data in the browser", "sessionStorage.setItem('key', key)"),
    ],
)
def test_the_patterns_find(forbidden: str, text: str) -> None:
    assert re.search(FORBIDDEN[forbidden], text)
