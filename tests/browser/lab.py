"""JupyterLab as a user opens it, and a browser's page on one of its notebooks."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import nbformat

from perfkit.report import notebooks

TOKEN = "of-the-tests"
LOCAL = re.compile(r"(https?|wss?)://(localhost|127\.0\.0\.1)[:/]|data:|blob:|about:")
MOST_PIXELS = 14_000
START, RUN = 240.0, 240.0  # s that a server, and a notebook, may take on a loaded machine
SETTINGS = {
    "@jupyterlab/notebook-extension/tracker": {
        "windowingMode": "none",
        "autoStartDefaultKernel": True,
    },
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
# The debugger asks each kernel, and complains if a page is left before the answer.
LEFT_OUT = {"disabledExtensions": {"@jupyterlab/debugger-extension": True}}
QUIET = ("--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", "--expose-app-in-browser")

KERNEL_IS_READY = (
    "() => jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
)
OPEN = """async path => {
    await jupyterapp.restored;
    await jupyterapp.commands.execute('docmanager:open', {path});
}"""
LEAVE = "[...jupyterapp.shell.widgets('main')].forEach(one => one.dispose())"
HAS_RUN = """() => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]
    .every(prompt => /[0-9]/.test(prompt.textContent)) || document.querySelector('[data-mime-type*="error"]')"""
FOUND = "[...document.querySelectorAll('.perfkit-table')].find(one => one.ariaLabel === caption)"
HAS_TEXT = f"([caption, text]) => {FOUND}?.innerText.includes(text)"
HAS_ROWS = f"([caption, count]) => {FOUND}?.querySelectorAll('tbody tr').length === count"


class Lab:
    def __init__(self, folder: Path, *, cache: Path | None = None) -> None:
        self.folder, self.port = folder / "work", _free_port()
        self.folder.mkdir()
        for name in ("config", "data", "runtime", "settings", "workspaces", "cache"):
            (folder / name).mkdir()
        configured = folder / "config" / "labconfig"
        configured.mkdir()
        (configured / "page_config.json").write_text(json.dumps(LEFT_OUT))
        self._log = (folder / "log").open("w")
        command = [
            sys.executable,
            "-m",
            "jupyterlab",
            *QUIET,
            f"--port={self.port}",
            f"--ServerApp.token={TOKEN}",
        ]
        self.environment = {
            **os.environ,
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
            "PERFKIT_CACHE": str(cache or folder / "cache"),
        }
        self._process = subprocess.Popen(
            [*command, str(self.folder)],
            env=self.environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._settings = folder / "settings"
        self.set("@jupyterlab/apputils-extension/themes", {"theme": "JupyterLab Light"})
        for plugin, values in SETTINGS.items():
            self.set(plugin, values)
        _until(lambda: self.api("GET", "status"), START)

    def set(self, plugin: str, values: dict[str, Any]) -> None:
        package, _, name = plugin.rpartition("/")
        place = self._settings / package / f"{name}.jupyterlab-settings"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(values))

    def api(self, method: str, path: str) -> Any:
        request = Request(f"http://127.0.0.1:{self.port}/api/{path}?token={TOKEN}", method=method)
        with urlopen(request, timeout=START) as answer:
            body = answer.read()
        return json.loads(body) if body else {}

    def write(self, name: str, *cells: str) -> str:
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells]
        )
        nbformat.write(notebook, self.folder / f"{name}.ipynb")
        return name

    def copy(self, name: str, as_: str, **parameters: str | list[int]) -> str:
        """Write a notebook of perfkit with other values in its parameters cell and return its name."""
        notebook = nbformat.read(notebooks.folder() / f"{name}.ipynb", as_version=4)
        cell = next(
            cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])
        )
        cell.source = "\n".join(
            [cell.source, *(f"{key} = {value!r}" for key, value in parameters.items())]
        )
        nbformat.write(notebook, self.folder / f"{as_}.ipynb")
        return as_

    def end_sessions(self) -> None:
        """End every kernel: one that is found again keeps its state."""
        for session in self.api("GET", "sessions"):
            self.api("DELETE", f"sessions/{session['id']}")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(START)
        self._log.close()


class Page:
    """A notebook in the browser, what its console said and which other machines it asked."""

    def __init__(self, tab: Any, lab: Lab) -> None:
        self.tab, self.lab = tab, lab
        tab.set_default_timeout(START * 1000)
        self.console: list[str] = []
        self.foreign: list[str] = []
        tab.on(
            "console", lambda said: self.console.append(said.text) if said.type == "error" else None
        )
        tab.on("pageerror", lambda error: self.console.append(str(error)))
        tab.on(
            "request",
            lambda asked: None if LOCAL.match(asked.url) else self.foreign.append(asked.url),
        )

    def run(self, name: str) -> None:
        self.open(name)
        self.run_cells()

    def open(self, name: str) -> None:
        """Open a notebook in the place of the one before; JupyterLab itself is loaded once."""
        if self.tab.url.startswith("http"):
            self.leave()
        else:
            place = f"workspaces/{name}-{time.monotonic_ns()}"
            self.tab.goto(f"http://127.0.0.1:{self.lab.port}/lab/{place}?token={TOKEN}")
            self.tab.wait_for_function("window.jupyterapp", timeout=START * 1000)
        self.tab.evaluate(OPEN, f"{name}.ipynb")
        self.tab.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=START * 1000)
        self.tab.wait_for_function(KERNEL_IS_READY, timeout=START * 1000)

    def run_cells(self) -> None:
        self.tab.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
        self.tab.wait_for_function(HAS_RUN, timeout=RUN * 1000)
        self.idle()

    def idle(self) -> None:
        self.tab.wait_for_function(KERNEL_IS_READY, timeout=RUN * 1000)

    def errors(self) -> list[str]:
        kinds = ("application/vnd.jupyter.stderr", "application/vnd.jupyter.error")
        found = ", ".join(f'[data-mime-type="{kind}"]' for kind in kinds)
        return [str(text) for text in self.tab.locator(found).all_inner_texts()]

    def text(self, caption: str) -> str:
        return str(self._table(caption).inner_text())

    def rows(self, caption: str) -> int:
        return int(self._table(caption).locator("tbody tr").count())

    def until_text(self, caption: str, text: str) -> None:
        self.tab.wait_for_function(HAS_TEXT, arg=[caption, text], timeout=START * 1000)

    def until_rows(self, caption: str, count: int) -> None:
        self.tab.wait_for_function(HAS_ROWS, arg=[caption, count], timeout=START * 1000)

    def _table(self, caption: str) -> Any:
        return self.tab.locator(f'.perfkit-table[aria-label="{caption}"]')

    def picture(self, file: Path) -> None:
        """Store all of the notebook as a picture, from its top, in a window that is as high."""
        high = self.tab.evaluate(
            "document.querySelector('.jp-WindowedPanel-viewport').scrollHeight"
        )
        self.tab.set_viewport_size({"width": 1400, "height": min(high + 200, MOST_PIXELS)})
        self.tab.evaluate(
            "document.querySelectorAll('.jp-Notebook, .jp-Notebook *').forEach(one => one.scrollTop = 0)"
        )
        self.tab.wait_for_timeout(1000)
        self.tab.locator(".jp-Notebook").screenshot(path=file)

    def leave(self) -> None:
        """Close what is open, and end its kernel."""
        self.tab.evaluate(LEAVE)
        self.lab.end_sessions()

    def close(self) -> None:
        self.tab.close()
        self.lab.end_sessions()


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def _until(answer: Any, limit: float) -> None:
    end = time.monotonic() + limit
    while True:
        try:
            answer()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.3)
