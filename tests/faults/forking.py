"""The command `perfkit`, forked by a process that has imported it, which takes most of the time of a small report."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from perfkit.report.notebooks import Forked

# Answers lines: to a command its process, to a process how it ended. Notebooks are those of a folder.
PROGRAM = """
import json, os, signal, socket, sys
from pathlib import Path
import nbconvert, papermill
from perfkit import charts, diagnosis, report, widgets
from perfkit.cli import main
from perfkit.report import notebooks
with socket.socket(fileno=int(sys.argv[1])) as peer, peer.makefile("rw") as lines:
    for asked in map(json.loads, lines):
        if "pid" in asked:
            ended, status = os.waitpid(asked["pid"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        elif (answer := os.fork()) == 0:
            break
        print(json.dumps(answer), file=lines, flush=True)
    else:
        raise SystemExit
os.setsid()
for number, file in enumerate(asked["files"], 1):
    os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), number)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its jobs in the background ignore both
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ.clear()
os.environ.update(asked["env"])
if asked["most"]:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (asked["most"], asked["most"]))
notebooks.folder = lambda: Path(asked["folder"])
sys.argv[1:] = asked["arguments"]
main(prog_name="perfkit")
"""


class Commands:
    """Starts commands; all end with it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            argv = [sys.executable, "-c", PROGRAM, str(theirs.fileno())]
            self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            self._lines = ours.makefile("rw")

    def ask(self, request: dict[str, Any]) -> Any:
        print(json.dumps(request), file=self._lines, flush=True)
        return json.loads(self._lines.readline())

    def start(
        self, folder: Path, *arguments: object, env: dict[str, str] | None = None, most: int | None = None
    ) -> "Command":
        """Start perfkit with the notebooks of a folder, and files of `most` bytes at most."""
        return Command(self, folder=str(folder), arguments=[*map(str, arguments)], env=env or {**os.environ}, most=most)

    def end(self) -> None:
        self._lines.close()
        self._process.wait()


class Command(Forked):
    """A command that runs; what the tests use of `subprocess.Popen`."""

    def __init__(self, commands: Commands, **request: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="perfkit-command-")
        self._files = [Path(self._folder.name, name) for name in ("printed", "told")]
        for file in self._files:
            file.touch()
        pid = commands.ask({**request, "files": [*map(str, self._files)]})
        super().__init__(pid, lambda pid: commands.ask({"pid": pid}))

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for the end; return what was printed, and told on standard error."""
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise TimeoutError(f"{timeout} s")
            time.sleep(0.02)
        printed, told = (file.read_text(encoding="utf-8", errors="surrogateescape") for file in self._files)
        return printed, told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        self._folder.cleanup()
