"""The processes that run a report's notebooks: on Linux children of one that has imported what they need."""

from __future__ import annotations

import atexit
import io
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import IO, Any, cast

import nbformat
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type
from traitlets.config import Config

from perfkit.allocator import LIBC, prepare_fork

IS_COMMAND = False  # whether this process is the command `perfkit` alone, no program that has called it
ENGINE = "perfkit"  # the name of our engine at papermill
PATIENCE = 2.0  # s for a server that nobody asks to end by itself
DEATH_SIGNAL = 1  # what Linux calls the signal that a process gets when its parent ends
LANGUAGE = {"name": "python", "mimetype": "text/x-python", "file_extension": ".py", "pygments_lexer": "ipython3"}
# The program of `serve`, which finds perfkit where this process found it; its children look where others do.
SERVER = """
import sys
path = [entry for entry in sys.path if entry]
sys.path[:] = sys.argv[3:]
from perfkit.report.kernels import serve
serve([*map(int, sys.argv[1].split())], sys.argv[2].split(), path)
"""
# The program of a process for the cells of one notebook, where none can be forked.
ALONE = """
import sys
path = [entry for entry in sys.path if entry]
sys.path[:] = sys.argv[1:]
from perfkit.report.kernels import alone
alone(path)
"""


def is_command() -> bool:
    """Return whether this process is the command `perfkit` alone and has no other threads: it may be forked then."""
    return IS_COMMAND and sys.platform == "linux" and threading.active_count() == 1


class Died(Exception):
    """The process that ran a notebook ended before the notebook did."""


class Server:
    """A process that has imported what the notebooks import, and forks one for each in a few milliseconds.

    It is forked itself where this process is the command `perfkit` alone and has no other threads.
    """

    def __init__(self, names: Iterable[str], modules: Iterable[str], runs: Iterable[dict[str, Any]] = ()) -> None:
        pairs = {name: socket.socketpair() for name in ("", *names)}
        ours, theirs = zip(*pairs.values(), strict=True)
        numbers = [end.fileno() for end in theirs]
        self.process: Process
        if pid := _served(numbers, ours, modules) if is_command() else None:
            self.process = Forked(pid, _ending)
        else:
            argv = [sys.executable, "-c", SERVER, " ".join(map(str, numbers)), " ".join(modules), *sys.path]
            self.process = subprocess.Popen(argv, pass_fds=numbers, stdin=subprocess.DEVNULL, start_new_session=True)
        self._lines, *lines = (end.makefile("rw", encoding="ascii") for end in ours)
        for end in (*ours, *theirs):  # a stream of ours keeps its socket open until it is closed itself
            end.close()
        self._of = dict(zip(names, lines, strict=True))
        self._lock = threading.Lock()
        with suppress(OSError):  # it has ended: its first answer will tell
            print(json.dumps([*runs]), file=self._lines, flush=True)

    def fork(self, name: str) -> Child | None:
        """Return a new process for the cells of one of the notebooks; None if none can be forked."""
        pid = self.ask({"notebook": [*self._of].index(name)})
        lines = self._of[name]
        return Child(Forked(pid, self._ending), lines, lines) if pid else None

    def _ending(self, pid: int) -> int | None:
        """Return how a child ended; None while it runs. With the server its children end."""
        status = self.ask({"pid": pid})
        return self.process.poll() if status is None else status

    def ask(self, request: dict[str, Any]) -> int | None:
        """Return the answer to a request, see `serve`; None as well if the server has ended."""
        with self._lock:
            answer = "" if self._lines.closed else _asked(self._lines, self._lines, request)
        return json.loads(answer) if answer else None

    def end(self) -> None:
        """End the server, and with it its children; a program of its own that waits removes its temporary files."""
        if isinstance(self.process, subprocess.Popen) and self._lock.acquire(blocking=False):
            try:
                with suppress(OSError, subprocess.TimeoutExpired):
                    self._lines.close()
                    self.process.wait(PATIENCE)
            finally:
                self._lock.release()
        end(self.process)
        self.process.wait()
        with self._lock, suppress(OSError):
            self._lines.close()


def _asked(requests: IO[str], answers: IO[str], request: Any) -> str:
    """Return the line that answers a request; empty if nobody is there."""
    try:
        requests.write(json.dumps(request) + "\n")
        requests.flush()
        return answers.readline()
    except OSError:
        return ""


class Forked:
    """A process that was forked, with what `end` asks of a `subprocess.Popen`; `ending` asks if it ended."""

    def __init__(self, pid: int, ending: Callable[[int], int | None]) -> None:
        self.pid, self._ending = pid, ending
        self._lock = threading.Lock()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return how the process ended: its status, or -signal; None while it runs."""
        with self._lock:  # the system tells it once
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


class Child:
    """A process that runs the cells of one notebook, and the streams of its requests and answers."""

    def __init__(self, process: Process, requests: IO[str], answers: IO[str]) -> None:
        self.process, self._requests, self._answers = process, requests, answers

    def run(self, cell: nbformat.NotebookNode) -> bool:
        """Run a cell of code and give it its outputs; return whether it raised nothing."""
        answer = _asked(self._requests, self._answers, cell.source)
        if not answer:
            self.process.wait()
            raise Died
        done = json.loads(answer)
        cell.execution_count, cell.outputs = done["count"], [*map(nbformat.from_dict, done["outputs"])]
        return bool(done["succeeded"])

    def close(self) -> None:
        """Let the process end, and wait until it has."""
        for stream in (self._requests, self._answers):
            with suppress(OSError):
                stream.close()
        self.process.wait()


def _served(theirs: list[int], ours: Iterable[socket.socket], modules: Iterable[str]) -> int | None:
    """Fork a process that serves the sockets `theirs`; return its process id, None if it failed.

    It closes the other ends, `ours`, to notice when this process ends. All else stays open: libraries such as Arrow
    make their pipes anew after each fork, and abort where the old ones are closed.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    prepare_fork()
    pid = _forked()
    if pid != 0:
        return pid
    try:
        atexit._clear()  # what this process is to do at its end is not the other's to do
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for each in ours:
            each.close()
        serve(theirs, modules, sys.path[0 if sys.flags.safe_path else 1 :])
    except BaseException:  # noqa: BLE001  whatever it is, it must not go on as the process that was forked
        traceback.print_exc()
    os._exit(1)


def serve(sockets: list[int], modules: Iterable[str], path: list[str]) -> None:
    """Import parts of perfkit, prepare the runs of the first line, then answer requests until nobody is there.

    To the number of a notebook the answer is the process id of a new process, which runs the cells that come from that
    notebook's socket; to such an id how the process ended; null if there is none, or it has not ended. For `Server`; a
    request and an answer are a line of the first socket.
    """
    for name in modules:
        import_module(f"perfkit.{name}")
    if "charts" in modules:
        import_module("perfkit.charts.theme").trust()
    sys.path[:] = path
    peer, *notebooks = (socket.socket(fileno=number) for number in sockets)
    with peer, peer.makefile("rw", encoding="ascii") as lines:
        _prepare(json.loads(lines.readline()))
        _shell()
        prepare_fork()
        server = os.getpid()
        for request in map(json.loads, lines):
            answer = _ending(request["pid"]) if "pid" in request else _forked()
            if "notebook" in request:
                notebook = notebooks[request["notebook"]]
                if answer == 0:
                    break
                notebook.close()
            lines.write(f"{json.dumps(answer)}\n")
            lines.flush()
        else:
            return
    status = 1
    try:
        for other in notebooks:
            if other is not notebook:
                other.close()  # its end is told by all copies of the socket
        LIBC.prctl(DEATH_SIGNAL, signal.SIGKILL)  # type: ignore[union-attr]  # there is one where processes fork
        if os.getppid() == server:
            with notebook.makefile("rw", encoding="ascii") as lines:
                _run(lines, lines)
        status = 0
    finally:
        if status:
            traceback.print_exc()
        atexit._run_exitfuncs()
        os._exit(status)  # libraries would wait for their threads, which a fork does not copy


def _prepare(runs: Iterable[dict[str, Any]]) -> None:
    """Prepare runs for all kernels; where one cannot be, the notebook that asks for it will tell."""
    from perfkit.diagnosis import prepare
    from perfkit.report import links

    links.stored()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for run in runs:
            with suppress(Exception):
                prepare(**run)


def _forked() -> int | None:
    """Fork; return 0 in the child, which leads a group of its own, its process id in the parent, None if it failed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # threads of numpy, which knows what to do
            pid = os.fork()
    except OSError:
        return None
    with suppress(OSError):  # both do, for neither knows who comes first
        os.setpgid(pid, pid)
    return pid


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """Do work that only writes files in a forked process during the block, or after it where that one fails."""
    pid = None
    if is_command():
        prepare_fork()  # not where a program goes on: what is frozen is never collected
        pid = _forked()
    if pid == 0:
        with suppress(BaseException):
            LIBC.prctl(DEATH_SIGNAL, signal.SIGKILL)  # type: ignore[union-attr]  # there is one where processes fork
            work()
            os._exit(0)
        os._exit(1)
    process = Forked(pid, _ending) if pid else None
    try:
        yield
        if process is None or process.wait() != 0:
            work()  # it tells what went wrong
    finally:
        if process:
            process.kill()
            process.wait()


def _ending(pid: int) -> int | None:
    """Return how a child ended: its status, or -signal; None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def alone(path: list[str]) -> None:
    """Run the cells that come from standard input, and answer on standard output; for `Kernels`."""
    sys.path[:] = path
    requests, sys.stdin = sys.stdin, open(os.devnull, encoding="ascii")  # noqa: SIM115  while the process lasts
    with os.fdopen(os.dup(1), "w", encoding="ascii") as answers:
        _run(requests, answers)


def _run(requests: IO[str], answers: IO[str]) -> None:
    """Run cells, a line each, and answer with their outputs until no more come."""
    shell = _shell()
    os.dup2(2, 1)  # what libraries write beside Python is no part of what the command prints
    sys.stdout, sys.stderr = Stream("stdout"), Stream("stderr")
    for code in map(json.loads, requests):
        count = shell.execution_count
        succeeded = shell.run_cell(code, store_history=True).success
        answers.write(json.dumps({"count": count, "succeeded": succeeded, "outputs": _OUTPUTS}) + "\n")
        answers.flush()
        _OUTPUTS.clear()


_OUTPUTS: list[dict[str, Any]] = []  # of the cell that runs


class Stream(io.TextIOBase):
    """Standard output or error of a cell: what is written there is an output of the cell."""

    def __init__(self, name: str) -> None:
        self.name = name

    def writable(self) -> bool:  # noqa: D102  as all streams
        return True

    def write(self, text: str) -> int:
        """Add text to the last output, or begin a new one."""
        if text and _OUTPUTS and _OUTPUTS[-1].get("name") == self.name:
            _OUTPUTS[-1]["text"] += text
        elif text:
            _OUTPUTS.append({"output_type": "stream", "name": self.name, "text": text})
        return len(text)


class Publisher(DisplayPublisher):
    """Adds what a cell displays to its outputs."""

    def publish(self, data: Any, metadata: Any = None, *_: Any, **__: Any) -> None:
        """Add an output; one that is to be changed later stays as it is."""
        _OUTPUTS.append({"output_type": "display_data", "data": data, "metadata": metadata or {}})

    def clear_output(self, wait: bool = False) -> None:
        """Take the outputs back."""
        _OUTPUTS.clear()


class Hook(DisplayHook):
    """Adds the value of a cell's last line to its outputs."""

    def write_output_prompt(self) -> None:
        """Write none: the output has the number of its cell."""

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        """Add the output."""
        output = {"output_type": "execute_result", "data": format_dict, "metadata": md_dict or {}}
        _OUTPUTS.append({**output, "execution_count": self.prompt_count})

    def finish_displayhook(self) -> None:
        """Write no end of the line."""


class Shell(InteractiveShell):
    """Runs cells as a kernel does."""

    displayhook_class, display_pub_class = Type(Hook), Type(Publisher)

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        error = {"output_type": "error", "ename": etype.__name__, "evalue": str(evalue), "traceback": stb}
        _OUTPUTS.append(error)


def _shell() -> InteractiveShell:
    options = Config(HistoryManager={"enabled": False}, InteractiveShell={"warn_venv": False})
    return Shell.instance(config=options)


Process = subprocess.Popen[Any] | Forked


class Kernels:
    """The processes of a report's notebooks, by name, and on Linux the server that forks them."""

    def __init__(self, names: list[str], modules: Iterable[str], runs: Iterable[dict[str, Any]]) -> None:
        self._lock = threading.Lock()
        self._processes: dict[str, Process] = {}
        self._is_over = False
        self._server = Server(names, modules, runs) if sys.platform == "linux" else None

    def child(self, notebook: str) -> Child:
        """Return a new process for the cells of a notebook; OSError if none can start."""
        child = self._server.fork(notebook) if self._server else None
        if child is None:
            argv, pipe = [sys.executable, "-c", ALONE, *sys.path], subprocess.PIPE
            process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, encoding="ascii", start_new_session=True)
            child = Child(process, cast("IO[str]", process.stdin), cast("IO[str]", process.stdout))
        with self._lock:
            self._processes[notebook] = child.process
            if self._is_over:
                end(child.process)
        return child

    def end(self) -> None:
        """End all kernels with their children, and kernels that are yet to start."""
        with self._lock:
            self._is_over = True
            for process in self._processes.values():
                end(process)
        if self._server:
            self._server.end()

    def ending(self, notebook: str) -> str:
        """Return how a notebook's kernel ended, in words; empty if that is not known."""
        process = self._processes.get(notebook)
        status = process.poll() if process else None
        if status is None:
            return ""
        if status >= 0:
            return f"it ended with status {status}"
        memory = "; the system does that when memory runs out" if status == -signal.SIGKILL else ""
        return f"signal {signal.Signals(-status).name} ended it{memory}"


@cache
def engine() -> str:
    """Return the name of the engine of papermill that runs a notebook's cells in a `Child`, given as `child`."""
    from papermill.engines import Engine, papermill_engines

    class Forking(Engine):  # type: ignore[misc]  # papermill has no types
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, *, child: Child, **_: Any) -> None:
            nb_man.nb.metadata.language_info = LANGUAGE | {"version": platform.python_version()}
            for index, cell in enumerate(nb_man.nb.cells):
                nb_man.cell_start(cell, index)
                try:
                    if cell.cell_type == "code" and cell.source.strip() and not child.run(cell):
                        nb_man.cell_exception(cell, index)
                        break
                finally:
                    nb_man.cell_complete(cell, index)

    papermill_engines.register(ENGINE, Forking)
    return ENGINE


def end(process: subprocess.Popen[Any] | Forked) -> None:
    """Kill a process that leads a group of its own, with its children, if it still runs."""
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
