"""A package index over loopback, as a real one behaves: JSON (PEP 691), ranges, and faults on request."""

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from paceline.catalog.known_models import Parts, PublishedFile


def wheel_of(package: str, number: int, part: bytes) -> bytes:
    """Returns a wheel with a part of a file, which would end a process that imports it."""
    made = io.BytesIO()
    folder = f"{package.replace('-', '_')}{number}"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr(f"{folder}/__init__.py", "raise SystemExit('imported')")
        opened.writestr(f"{folder}/data/part{number:02}.bin", part)
    return made.getvalue()


def publish(folder: Path, name: str, content: bytes, part_bytes: int) -> PublishedFile:
    """Writes wheels with the parts of a file. Returns the file's entry for the table of models."""
    package, count = f"{name}-part", -(-len(content) // part_bytes)
    for number in range(1, count + 1):
        wheel = folder / f"{package.replace('-', '_')}{number}-1.0-py3-none-any.whl"
        wheel.write_bytes(wheel_of(package, number, content[(number - 1) * part_bytes : number * part_bytes]))
    digest = hashlib.sha256(content).hexdigest()
    parts = Parts(package, "1.0", count, part_bytes)
    return PublishedFile(name, f"nobody/{name}", "1" * 40, f"{name}.gguf", len(content), digest, "Apache-2.0", parts)


class PackageIndex:
    """Serves the wheels of a folder. `requests`: path and range of each download so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.requests: list[tuple[str, str | None]] = []
        # From then on every download is cut after this many bytes in all, as by a network that is gone.
        self.bytes_left: int | None = None
        # Digests that the index names; else those of the wheels.
        self.digests: dict[str, str] = {}

    def page(self, package: str) -> bytes | None:
        """Returns what the index says of a package."""
        wheels = sorted(self.folder.glob(f"{package.replace('-', '_')}-*.whl"))
        files = [
            {
                "filename": wheel.name,
                "url": f"../../files/{wheel.name}",
                "hashes": {"sha256": self.digests.get(wheel.name) or hashlib.sha256(wheel.read_bytes()).hexdigest()},
            }
            for wheel in wheels
        ]
        return json.dumps({"meta": {"api-version": "1.1"}, "name": package, "files": files}).encode() if files else None


@contextmanager
def serve_index(folder: Path) -> Iterator[PackageIndex]:
    """Serves a folder of wheels until the end of the block."""
    index = PackageIndex(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            section, _, rest = self.path.lstrip("/").partition("/")
            if index.bytes_left == 0:
                self.close_connection = True
            elif section == "simple" and (page := index.page(rest.strip("/"))) is not None:
                self._answer(200, page, "application/vnd.pypi.simple.v1+json")
            elif section == "files" and (index.folder / rest).is_file():
                self._send(rest)
            else:
                self.send_error(404)

        def _send(self, name: str) -> None:
            content, wanted = (index.folder / name).read_bytes(), self.headers["Range"]
            index.requests.append((name, wanted))
            if wanted is None:
                self._answer(200, content, "application/octet-stream")
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
            else:
                self._answer(206, content[start:], "application/octet-stream")

        def _answer(self, status: int, content: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if kind == "application/octet-stream" and index.bytes_left is not None:
                content = content[: index.bytes_left]
                index.bytes_left -= len(content)
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index.url = f"http://127.0.0.1:{server.server_port}/simple"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
