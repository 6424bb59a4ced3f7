"""A real Prometheus server on the loopback, and exporters for it to scrape.

`Exporter` answers each scrape with the next page, `serving` runs Debian's `prometheus` on a free port.
"""

import json
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import extras

INTERVAL_S = 0.5
PATIENCE_S = 120.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Exporter:
    """Answers the scrape number i, counted from 0, with the lines of ``page(i)``."""

    def __init__(self, page: Callable[[int], Sequence[str]]) -> None:
        self.scrapes = 0
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = "\n".join([*page(exporter.scrapes), ""]).encode()
                exporter.scrapes += 1
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def serving(folder: Path, *exporters: Exporter) -> Iterator[str]:
    """The address of a server that scrapes the exporters every `INTERVAL_S`; it has ended after the block."""
    targets = json.dumps([exporter.address for exporter in exporters])
    config = folder / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: {INTERVAL_S * 1000:.0f}ms, scrape_timeout: {INTERVAL_S * 1000:.0f}ms}}\n"
        f"scrape_configs: [{{job_name: dcgm, static_configs: [{{targets: {targets}}}]}}]\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    command = [extras.program("prometheus"), *options, "--log.level=warn"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        _until(
            lambda: DIRECT.open(f"http://{address}/-/ready", timeout=1).close(),
            server,
            folder / "log",
        )
        yield f"http://{address}"
    finally:
        server.terminate()
        try:
            server.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _until(ready: Callable[[], None], server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ready()
        except OSError:
            assert server.poll() is None, f"prometheus ended: {log.read_text()}"
            assert time.monotonic() < deadline, f"prometheus is not ready: {log.read_text()}"
            time.sleep(0.05)


def ask(address: str, query: str, at: float | None = None) -> list[dict[str, Any]]:
    """What the server itself answers to a query of now, or of the time `at` in s."""
    asked = urllib.parse.urlencode({"query": query, **({} if at is None else {"time": at})})
    with DIRECT.open(f"{address}/api/v1/query?{asked}", timeout=PATIENCE_S) as response:
        answer = json.load(response)
    assert "success" == answer["status"]
    return list(answer["data"]["result"])


def wait_for(address: str, series: str, count: int) -> None:
    """Wait until `count` scrapes of every one of `series` are stored."""
    deadline = time.monotonic() + PATIENCE_S
    query = f"min(count_over_time({series}[1m]))"
    while not (found := ask(address, query)) or float(found[0]["value"][1]) < count:
        assert time.monotonic() < deadline, (
            f"after {PATIENCE_S} s the server has {found} scrapes of {series}"
        )
        time.sleep(0.1)
