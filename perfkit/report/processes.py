"""How another program that a report starts is ended: with its children."""

import os
import signal
import subprocess
from contextlib import suppress
from typing import Any


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a group of its own, with its children, if it still runs."""
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
