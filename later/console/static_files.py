"""The files of the console, read and compressed once, and the answers that send them."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import posixpath
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import hdrs, web

from later import __version__

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
"""The policy of every page: nothing inline, and nothing from elsewhere."""
HEADERS = {
    "Server": f"later/{__version__}",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}
"""Headers of all files. A browser keeps a file, and asks each time whether it is still the same."""
INDEX = "index.html"
START = "app.js"
"""The module that starts the page."""

_IMPORT = re.compile(r'^(?:import|export|\}) ?.*from "(\..*)";$', re.MULTILINE)

_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
"""The media types of files, whatever the machine's own table says."""


class StaticFile:
    """A file with its answers, as it is and compressed. Each has an entity tag of its own."""

    def __init__(self, name: str, content: bytes) -> None:
        suffix = name[name.rfind(".") :] if "." in name else ""
        type = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "text/plain"
        self._type = f"{type}; charset=utf-8" if type.startswith("text/") else type
        self.content = content
        self.compressed = gzip.compress(content, mtime=0)
        tag = hashlib.sha256(content).hexdigest()[:32]
        self._etag, self._compressed_etag = f'"{tag}"', f'"{tag}-gzip"'

    def answer(self, request: web.BaseRequest) -> web.Response:
        """Return the answer to a request for this file: 304 if the client has it."""
        is_compressed = _takes_gzip(request)
        etag = self._compressed_etag if is_compressed else self._etag
        headers = {**HEADERS, hdrs.ETAG: etag, hdrs.CONTENT_TYPE: self._type}
        if _has(request, etag):
            del headers[hdrs.CONTENT_TYPE]
            return web.Response(status=304, headers=headers)
        if is_compressed:
            headers[hdrs.CONTENT_ENCODING] = "gzip"
        return web.Response(body=self.compressed if is_compressed else self.content, headers=headers)


def read_static_files(placeholders: dict[str, str]) -> dict[str, StaticFile]:
    """Return the files by their paths. `placeholders` maps names to the texts that stand for them in the page."""
    found = dict(_walk(files("later.console") / "static", ""))
    page = found[INDEX].decode()
    links = "\n".join(f'<link rel="modulepreload" href="{{{{static}}}}/{path}">' for path in _imported_by(START, found))
    for name, text in {"modules": links, **placeholders}.items():
        page = page.replace(f"{{{{{name}}}}}", text)
    found[INDEX] = page.encode()
    return {path: StaticFile(path, content) for path, content in found.items()}


def _imported_by(start: str, contents: Mapping[str, bytes]) -> list[str]:
    """Return the paths of all modules that are loaded with one, so that the browser asks for them at once."""
    found = [start]
    for importer in found:
        for name in _IMPORT.findall(contents[importer].decode()):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(importer), name))
            if path not in found:
                found.append(path)
    return sorted(found[1:])


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the content of each file in a folder and below it."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.read_bytes()


def _takes_gzip(request: web.BaseRequest) -> bool:
    """Return True if the client takes a compressed answer (RFC 9110, section 12.5.3)."""
    for part in ",".join(request.headers.getall(hdrs.ACCEPT_ENCODING, ())).split(","):
        coding, _, parameters = part.partition(";")
        if coding.strip().lower() == "gzip":
            return parameters.replace(" ", "").rstrip("0.") not in ("q=", "Q=")
    return False


def _has(request: web.BaseRequest, etag: str) -> bool:
    """Return True if the client has the file of this entity tag (RFC 9110, section 13.1.2)."""
    known = ",".join(request.headers.getall(hdrs.IF_NONE_MATCH, ()))
    return known.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in known.split(","))
