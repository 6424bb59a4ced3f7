"""`perfkit serve` shows the explorer on a page of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from browser.lab import LOCAL, START

from perfkit.report.notebooks import sample


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """A server on the sample run: its port and token."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port = int(made.getsockname()[1])
    command = [sys.executable, "-m", "perfkit", "serve", str(sample()), f"--port={port}", "--no-browser"]
    environment = {**os.environ, "JUPYTER_CONFIG_DIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert server.stdout
    lines = iter(server.stdout.readline, "")
    address = next(line for line in lines if "?token=" in line)
    yield port, address.partition("?token=")[2].strip()
    os.kill(server.pid, signal.SIGTERM)
    try:
        server.wait(START)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.stdout.close()


def test_page_needs_its_token_and_asks_no_other_machine(chromium: Any, served: tuple[int, str]) -> None:
    """Without the token there is a login, with it the pickers; all of it comes from the loopback."""
    port, token = served
    tab, foreign = chromium.new_page(), []
    tab.on("request", lambda asked: None if LOCAL.match(asked.url) else foreign.append(asked.url))
    tab.goto(f"http://127.0.0.1:{port}/")
    assert "/login" in tab.url
    tab.goto(f"http://127.0.0.1:{port}/?token={token}")
    tab.wait_for_selector(".perfkit-explorer svg.marks", timeout=START * 1000)
    assert [] == foreign
    tab.close()


def test_listens_on_the_loopback_only(served: tuple[int, str]) -> None:
    """The port is closed on every other address of this machine."""
    port, _ = served
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)}
    for address in addresses - {"127.0.0.1", "127.0.1.1"}:
        with socket.socket() as asked:
            asked.settimeout(2)
            assert 0 != asked.connect_ex((address, port))
