"""The explorer of a run as a page of its own, for those who do not open notebooks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import nbformat

from perfkit.errors import PerfkitError

TEMPLATES = Path(__file__).with_name("served")  # Voilà's own template fetches icons from another server


def command(profile: Path, *, port: int, options: Sequence[str] = ()) -> int:
    """Serve the explorer of a profile on this machine's loopback until it is stopped and return the exit status.

    The address, which is printed, holds a token: another user of the machine who finds the port gets no page. The token
    is made by the server itself, since whoever may list processes can read a command line.

    Raises
    ------
    PerfkitError
        If Voilà is not installed.
    """
    if find_spec("voila") is None:
        raise PerfkitError("serve: Voilà is not installed. Install it with: pip install 'perfkit[serve]'.")
    search = os.pathsep.join([str(TEMPLATES), *filter(None, [os.environ.get("JUPYTER_PATH")])])
    with tempfile.TemporaryDirectory(prefix="perfkit-serve-") as folder:
        page = Path(folder, "explorer.ipynb")
        nbformat.write(notebook(profile), page)
        settings = ["--Voila.ip=127.0.0.1", "--Voila.auto_token=True", f"--port={port}", "--template=perfkit"]
        server = [sys.executable, "-m", "voila", str(page), *settings, *options]
        with subprocess.Popen(server, env={**os.environ, "JUPYTER_PATH": search}) as running:
            signal.signal(signal.SIGTERM, lambda *_: running.terminate())  # no server stays behind
            try:
                return running.wait()
            except KeyboardInterrupt:
                running.terminate()
                return 0


def notebook(profile: Path) -> nbformat.NotebookNode:
    """Return the notebook behind the page."""
    lines = [
        "import perfkit",
        "from perfkit import widgets",
        f"widgets.explorer(perfkit.load({str(profile.absolute())!r}))",
    ]
    cell = nbformat.v4.new_code_cell("\n".join(lines))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made: nbformat.NotebookNode = nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": kernel})
    return made
