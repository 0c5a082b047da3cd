"""A Hugging Face Hub of one model on loopback, as far as `huggingface_hub` needs it to download."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer:
    """Serves the files of a directory as the model `repo_id` (NAME/NAME), at every revision, between enter and exit.

    requests: paths that were asked for.
    """

    def __init__(self, repo_id: str, directory: Path) -> None:
        self.repo_id = repo_id
        self.requests: list[str] = []
        self._files = {path.name: path.read_bytes() for path in directory.iterdir()}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        """For HF_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def info(self) -> bytes:
        """What the API says of the model."""
        siblings = [{"rfilename": name} for name in sorted(self._files)]
        return json.dumps({"id": self.repo_id, "modelId": self.repo_id, "sha": COMMIT, "siblings": siblings}).encode()

    def tree(self) -> bytes:
        """What the API says of the model's files."""
        entries = [
            {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for name, data in sorted(self._files.items())
        ]
        return json.dumps(entries).encode()

    def file(self, name: str) -> bytes | None:
        """The content of a file, if there is such a file."""
        return self._files.get(name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            path = self.path.split("?")[0]
            hub.requests.append(path)
            content_type, body = "application/json", None
            if path.startswith(f"/api/models/{hub.repo_id}/tree/"):
                body = hub.tree()
            elif path == f"/api/models/{hub.repo_id}" or path.startswith(f"/api/models/{hub.repo_id}/revision/"):
                body = hub.info()
            elif path.startswith(f"/{hub.repo_id}/resolve/"):
                content_type, body = "application/octet-stream", hub.file(path.rsplit("/", 1)[-1])
            self.send_response(200 if body is not None else 404)
            if body is None:
                body = b"{}"
                self.send_header("X-Error-Code", "EntryNotFound" if hub.repo_id in path else "RepoNotFound")
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Not to the terminal; `HubServer.requests` has them."""

    return Handler
