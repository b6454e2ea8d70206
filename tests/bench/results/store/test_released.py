"""Addresses: whatever a server sends, the answer is an error of one line."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedbench.bench.results.store import released
from fedbench.bench.results.store.released import read_checked
from fedbench.bench.system.errors import StoreError


class Handler(http.server.BaseHTTPRequestHandler):
    """Sends too little, or bytes without end."""

    def do_GET(self) -> None:
        if self.path.endswith("SHA256SUMS"):
            self.send_error(404)
            return
        self.send_response(200)
        if self.path.startswith("/short"):
            self.send_header("Content-Length", "10")
        self.end_headers()
        self.wfile.write(b"12345")
        with suppress(OSError):  # the client has gone
            while not self.path.startswith("/short"):
                self.wfile.write(bytes(2**12))

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("file", "why"),
    [("endless.parquet", "1,000,000 bytes"), ("short.parquet", "5 bytes too early")],
)
def test_an_answer_is_bounded(
    file: str, why: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(released, "_LARGEST", 10**6)
    with pytest.raises(StoreError, match=why) as raised:
        read_checked(f"{address}/{file}")
    assert "\n" not in str(raised.value)


def test_a_folder_is_no_release(tmp_path: Path) -> None:
    (tmp_path / "old.parquet").mkdir()
    with pytest.raises(StoreError, match=r"old\.parquet"):
        read_checked(str(tmp_path / "old.parquet"))
