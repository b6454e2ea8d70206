"""Addresses: whatever a server sends, the answer is an error of one line."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from fedbench.bench.results.store import released
from fedbench.bench.results.store.released import read_checked
from fedbench.bench.system.errors import StoreError

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(bytes(2**12))


def cut_off(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "10")
    handler.end_headers()
    handler.wfile.write(b"12345")


def silent(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    time.sleep(1)


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """Return a function that serves an answer, and the address of it."""
    servers = []

    def start(answer: Answer) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with suppress(OSError):  # the client has gone
                    if self.path.endswith("SHA256SUMS"):
                        self.send_error(404)
                    else:
                        answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        servers[-1].daemon_threads = True
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/x.parquet"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (endless, "1,000,000 bytes"),
        (cut_off, "5 bytes too early"),
        (silent, "timed out"),
    ],
)
def test_an_answer_is_bounded_in_bytes_and_time(
    answer: Answer,
    why: str,
    serve: Callable[[Answer], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(released, "_LARGEST", 10**6)
    monkeypatch.setattr(released, "_SECONDS", 0.2 if answer is silent else 60.0)
    with pytest.raises(StoreError, match=why) as raised:
        read_checked(serve(answer))
    assert "\n" not in str(raised.value)
