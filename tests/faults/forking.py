"""The command `perfkit`, or other code, forked by a process that has imported perfkit, which takes most of the time."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

# Answers lines: to a command its process, to a process how it ended. Notebooks are those of a folder.
PROGRAM = """
import gc, json, os, signal, socket, sys, traceback
from pathlib import Path
import nbconvert, papermill
from perfkit import charts, diagnosis, report, widgets
from perfkit.cli import main
from perfkit.readers import READERS, reader
from perfkit.report import notebooks
[reader(name) for name in READERS]  # and of no other package: which are installed is up to the test
gc.freeze()
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
sys.argv[1:] = asked["arguments"]
sys.path[:0] = asked["path"]
if asked["folder"]:
    notebooks.folder = lambda: Path(asked["folder"])
if not asked["code"]:
    main(prog_name="perfkit")
status = 1
try:
    exec(asked["code"], {"__name__": "__main__"})
    status = 0
except Exception:
    traceback.print_exc()
finally:  # to clear up all that was imported takes 1 s
    sys.stdout.flush()
    os._exit(status)
"""


class Commands:
    """Starts commands; all end with it."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-c", PROGRAM, str(theirs.fileno())]
            self._process = subprocess.Popen(
                argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._lines = self._ours.makefile("rw")

    def ask(self, request: dict[str, Any]) -> Any:
        print(json.dumps(request), file=self._lines, flush=True)
        return json.loads(self._lines.readline())

    def start(self, folder: Path | None, *arguments: object, **options: Any) -> "Command":
        """Start perfkit, with the notebooks of a folder if one is given."""
        return self._start(folder=str(folder or ""), arguments=[*map(str, arguments)], **options)

    def python(self, code: str, *arguments: object, **options: Any) -> "Command":
        """Start code that finds the arguments in `sys.argv`."""
        return self._start(code=code, arguments=[*map(str, arguments)], **options)

    def _start(
        self,
        *,
        arguments: list[str],
        folder: str = "",
        code: str = "",
        env: dict[str, str] | None = None,
        path: Sequence[str] = (),
        most: int | None = None,
    ) -> "Command":
        """`path`: where modules are found besides; `most`: bytes that a file may have."""
        request = {
            "arguments": arguments,
            "folder": folder,
            "code": code,
            "path": [*path],
            "most": most,
        }
        return Command(self, env=env or {**os.environ}, **request)

    def end(self) -> None:
        """End all, even if a process that another test forked still holds the socket."""
        self._ours.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._ours.close()
        self._process.wait()


class Forked:
    """A process that was forked, with what the tests use of a `subprocess.Popen`."""

    def __init__(self, pid: int, ending: Callable[[int], int | None]) -> None:
        self.pid = pid
        self._ending = ending
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return how the process ended: its status, or -signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self._ending(self.pid)
        return self.returncode

    def wait(self) -> int:
        """Wait until the process has ended."""
        while (status := self.poll()) is None:
            time.sleep(0.005)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process if it runs."""
        self.send_signal(signal.SIGKILL)


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
        printed, told = (
            file.read_text(encoding="utf-8", errors="surrogateescape") for file in self._files
        )
        return printed, told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        self._folder.cleanup()
