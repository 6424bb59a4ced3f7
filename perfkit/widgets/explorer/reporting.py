"""The button that makes a report of the present choice, in a process of its own."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from html import escape
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import ipywidgets

from perfkit.format import printable
from perfkit.widgets.explorer.parameters import arguments, place

if TYPE_CHECKING:
    from perfkit.widgets.explorer.choosing import Explorer

LONGEST = 600  # characters of what went wrong
TICK = 1.0  # s between two looks at the process
COMMAND = (sys.executable, "-P", "-m", "perfkit", "report")  # -P: a folder called perfkit beside the notebook is not it
NO_PATH = "This run was not read from one file or folder of its own, so no command can read it again."


class Reporting:
    """`button` starts a report, `status` says how it goes, and `link` leads to its page.

    The report goes to a folder beside the notebook that is named after the choice: the same choice again replaces it.
    """

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self.button = ipywidgets.Button(
            description="Report this window",
            tooltip="Run all notebooks on the present choice and write one page, in the background",
            icon="file-text",
            layout={"width": "auto"},
        )
        self.status, self.link = ipywidgets.HTML(), ipywidgets.Output()
        self.view = ipywidgets.VBox([self.status, self.link])
        self.thread: Thread | None = None
        self.button.on_click(self.start)
        explorer.observe(self._allow, "selection")
        self._allow()

    def start(self, _: Any = None) -> None:
        """Start a report of the present choice, unless one is being made."""
        if self.button.disabled:
            return
        path = place(self.explorer.run)
        if path is None:
            self._say(NO_PATH)
            return
        chosen = {**self.explorer.parameters, **self.explorer.files}
        name = hashlib.sha256(repr((str(path), chosen)).encode()).hexdigest()[:8]
        out = Path.cwd() / f"report-{name}"
        self.thread = Thread(target=self._make, args=([str(path), "--out", str(out), *arguments(chosen)], out))
        self.thread.daemon = True
        self.button.disabled, self.link.outputs = True, ()
        self.thread.start()

    def _allow(self, _: Any = None) -> None:
        """Offer the button where there is something to report, and no report is being made."""
        if self.thread is None:
            self.button.disabled = self.explorer.selection is None

    def _make(self, options: list[str], out: Path) -> None:
        try:
            problem = self._run([*COMMAND, *options])
        except (OSError, ValueError) as e:
            problem = str(e)
        if problem:
            self._say(f"The report could not be made: {printable(problem, LONGEST)}")
        else:
            self._say("The report is ready. JupyterLab draws its charts once `Trust HTML` above the page is pressed.")
            self.link.outputs = (_link(out / "index.html"),)
        self.thread = None
        self._allow()

    def _run(self, command: list[str]) -> str:
        """Wait for the process and return what it said went wrong, empty if nothing did."""
        began = time.monotonic()
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        while True:
            self._say(f"The report is being made ({time.monotonic() - began:.0f} s).")
            try:
                _, said = process.communicate(timeout=TICK)
            except subprocess.TimeoutExpired:
                continue
            lines = said.strip().splitlines()
            return "" if process.returncode == 0 else (lines or [f"it ended with status {process.returncode}"])[-1]

    def _say(self, text: str) -> None:
        self.status.value = f'<span role="status">{escape(text)}</span>'


def _link(page: Path) -> dict[str, Any]:
    """Return an output that leads to the page: JupyterLab takes the path as one beside the notebook."""
    target = quote(f"{page.parent.name}/{page.name}")
    html = f'<a href="{target}" target="_blank">{escape(page.parent.name)}/{page.name}</a> ({escape(str(page))})'
    return {"output_type": "display_data", "data": {"text/html": html, "text/plain": str(page)}, "metadata": {}}
