"""The notebooks: where they lie, which of them a run can answer, and how to run them."""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import nbformat

from perfkit.diagnosis.finding import Figure, Finding, Refusal, finite, plain
from perfkit.format import elided
from perfkit.profile import prepare_fork
from perfkit.run import Run

MIME = "application/vnd.perfkit.record+json"
# Begins the tag of a cell that has an answer only where one of the tables, or kinds of captures, it names was recorded.
NEEDS = "needs:"
# Tag of a cell for the person at the notebook: the explorer and the prose about it, and what the summary says already.
LIVE = "live"
# Tag of a heading that is left out where no cell below it shows anything.
OPTIONAL = "optional"
BASELINE = "baseline"
UNSHARED = (BASELINE, "published")  # parameters that choose nothing of the run
JOB, RANKS = "job", "ranks"
# Notebook, and the tables or kinds of captures of which the run must hold at least one for it to have an answer;
# BASELINE where an earlier run must have been given.
NOTEBOOKS: dict[str, tuple[str, ...]] = {
    "0_executive_summary": (),
    "1_baseline": ("network", "training", JOB),
    "2_monitoring": ("monitor",),
    "3_system": ("KERNELS", "COPIES", "API_CALLS", "RANGES", "timeline"),
    "3_call_paths": ("CALLTREE",),
    "4_kernels": ("LAUNCHES",),
    "5_framework": ("OPS",),
    "6_compare": (BASELINE,),
}
IS_COMMAND = False  # whether this process is the command `perfkit` alone, no program that has called it
START = "start"  # leads to the others; a page for a person, no part of a report
LONGEST = 4000  # characters of an error's message
QUIET = ["--IPKernelApp.log_level=50"]  # a kernel's remarks on its own transport are no part of a report
KERNEL = ("-m", "ipykernel_launcher")  # what Jupyter's command for a Python kernel says after the interpreter
# The program of `serve`, which finds perfkit where this process found it; its kernels look where others do.
SERVER = """
import sys
path = [entry for entry in sys.path if entry]
sys.path[:] = sys.argv[3:]
from perfkit.report.notebooks import serve
serve(int(sys.argv[1]), sys.argv[2].split(), path)
"""
_IMPORTED = re.compile(r"^from perfkit import (\w+(?:, *\w+)*)$", re.MULTILINE)


@dataclass(frozen=True)
class Failure:
    """Why a notebook is missing from a report: the kind of error, its message, and the code of the cell that failed."""

    error: str
    message: str
    code: str = ""

    def __str__(self) -> str:
        return f"{self.error}: {self.message}".removesuffix(": ")


Executed = nbformat.NotebookNode | Failure


class Server:
    """A process that has imported what the notebooks import, and forks a kernel in a few milliseconds.

    It is forked itself where this process is the command `perfkit` alone and has no other threads.
    """

    def __init__(self, modules: Iterable[str], runs: Iterable[dict[str, Any]] = ()) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self.process: Process
            may_fork = IS_COMMAND and threading.active_count() == 1 and "ipykernel" not in sys.modules
            if pid := _served(theirs, ours, modules) if may_fork else None:
                self.process = Forked(pid, _ending)
            else:
                argv = [sys.executable, "-c", SERVER, str(theirs.fileno()), " ".join(modules), *sys.path]
                self.process = subprocess.Popen(
                    argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
                )
            self._lines = ours.makefile("rw", encoding="ascii")
        self._lines.write(json.dumps([*runs]) + "\n")
        self._lines.flush()
        self._lock = threading.Lock()

    def fork(self, arguments: list[str], cwd: str, env: dict[str, str]) -> Forked | None:
        """Return a new kernel; None if none can be forked."""
        pid = self.ask({"arguments": arguments, "cwd": cwd, "env": env})
        return Forked(pid, self._ending) if pid else None

    def _ending(self, pid: int) -> int | None:
        """Return how a kernel ended; None while it runs. With the server its kernels end."""
        status = self.ask({"pid": pid})
        return self.process.poll() if status is None else status

    def ask(self, request: dict[str, Any]) -> int | None:
        """Return the answer to a request, see `serve`; None as well if the server has ended."""
        with self._lock:
            if self._lines.closed:
                return None
            try:
                self._lines.write(json.dumps(request) + "\n")
                self._lines.flush()
                answer = self._lines.readline()
            except OSError:
                answer = ""
        return json.loads(answer) if answer else None

    def end(self) -> None:
        """End the server; its kernels end when they notice."""
        end(self.process)
        self.process.wait()
        with self._lock, suppress(OSError):
            self._lines.close()


class Forked:
    """A process that was forked, with what Jupyter and `end` ask of a `subprocess.Popen`; `ending` asks if it ended."""

    stdin = stdout = stderr = None

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
            time.sleep(0.05)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process if it runs."""
        self.send_signal(signal.SIGKILL)


def _served(peer: socket.socket, ours: socket.socket, modules: Iterable[str]) -> int | None:
    """Fork a process that serves `peer`; return its process id, None if it failed.

    It closes the other end, `ours`, to notice when this process ends. All else stays open: libraries such as Arrow make
    their pipes anew after each fork, and abort where the old ones are closed.
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
        ours.close()
        serve(peer.detach(), modules, sys.path[0 if sys.flags.safe_path else 1 :])
    except BaseException:  # noqa: BLE001  whatever it is, it must not go on as the process that was forked
        traceback.print_exc()
    os._exit(1)


def serve(peer: int, modules: Iterable[str], path: list[str]) -> None:
    """Import parts of perfkit, prepare the runs of the first line, then answer requests until nobody is there.

    To the arguments of a kernel, its folder and environment the answer is the process id of a new kernel, to such an id
    how the kernel ended; null if there is none, or it has not ended. For `Server`; a request and an answer are a line.
    """
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # ipykernel reads it when imported: a kernel ends with its parent
    sys.modules["debugpy"] = None  # type: ignore[assignment]  # nobody debugs: each kernel would import it, slowly
    from ipykernel import kernelapp

    for name in modules:
        import_module(f"perfkit.{name}")
    if "charts" in modules:
        import_module("perfkit.charts.theme").trust()
    sys.path[:] = path
    with socket.socket(fileno=peer) as connection, connection.makefile("rw", encoding="ascii") as lines:
        _prepare(json.loads(lines.readline()))
        prepare_fork()
        for request in map(json.loads, lines):
            answer = _ending(request["pid"]) if "pid" in request else _forked()
            if answer == 0 and "pid" not in request:
                break
            lines.write(f"{json.dumps(answer)}\n")
            lines.flush()
        else:
            return
    os.environ.clear()
    os.environ.update(request["env"], JPY_PARENT_PID=str(os.getppid()))
    os.chdir(request["cwd"])
    sys.argv[:] = [KERNEL[1], *request["arguments"]]
    status = 1
    try:
        kernelapp.launch_new_instance()
        status = 0
    finally:
        if status:
            traceback.print_exc()
        # Its threads may still use the sockets that ipykernel closes, and libzmq aborts; the system closes them too.
        atexit.unregister(kernelapp.IPKernelApp.instance().close)
        atexit._run_exitfuncs()
        os._exit(status)  # libraries would wait for their threads, which a fork does not copy


def _prepare(runs: Iterable[dict[str, Any]]) -> None:
    """Prepare runs for all kernels; where one cannot be, the notebook that asks for it will tell."""
    from perfkit.diagnosis import prepare

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


def _ending(pid: int) -> int | None:
    """Return how a child ended: its status, or -signal; None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


Process = subprocess.Popen[bytes] | Forked


class _Kernels:
    """The processes of a report's kernels, by notebook, and on Linux the server that forks them."""

    def __init__(self, modules: Iterable[str], runs: Iterable[dict[str, Any]]) -> None:
        self._lock = threading.Lock()
        self._processes: dict[str, Process] = {}
        self._is_over = False
        self._server = Server(modules, runs) if sys.platform == "linux" else None

    def manager(self, notebook: str) -> type:
        """Return a class that starts the kernel of a notebook and adds its process."""
        from jupyter_client.asynchronous.client import AsyncKernelClient
        from jupyter_client.manager import AsyncKernelManager
        from jupyter_client.provisioning.local_provisioner import LocalProvisioner

        class Client(AsyncKernelClient):
            def start_channels(self, *channels: bool, **named: bool) -> None:
                """Start all but the heartbeat: its thread may wait for ever for a kernel that is ending."""
                super().start_channels(*channels, **{**named, "hb": False})

        add, server = self._add, self._server

        class Provisioner(LocalProvisioner):
            async def launch_kernel(self, cmd: list[str], **options: Any) -> Any:
                cwd, env = options.get("cwd") or os.getcwd(), options.get("env") or dict(os.environ)
                process = server.fork(cmd[3:], str(cwd), env) if server else None
                if process is None:
                    return await super().launch_kernel(cmd, **options)
                self.process, self.cwd = process, cwd  # type: ignore[assignment]  # it has what is asked of one
                self.pid = self.pgid = process.pid
                return self.connection_info

        class Manager(AsyncKernelManager):
            async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]  # as the class above it
                spec, ours = self.kernel_spec, (sys.executable, *KERNEL)
                is_plain = spec is not None and "kernel_provisioner" not in spec.metadata
                if server and is_plain and tuple(self.format_kernel_cmd()[:3]) == ours:
                    self.kernel_id = self.kernel_id or str(uuid4())
                    self.provisioner = Provisioner(kernel_id=self.kernel_id, kernel_spec=spec, parent=self)
                    # Another program may take a TCP port before the kernel opens it. These sockets leave no file.
                    self.transport, self.ip, self.cache_ports = "ipc", f"@perfkit-{uuid4()}", False
                self.client_factory = Client
                await super().start_kernel(**options)
                add(notebook, getattr(self.provisioner, "process", None))

        return Manager

    def _add(self, notebook: str, process: Process | None) -> None:
        if process is None:  # a kernel on another machine
            return
        with self._lock:
            self._processes[notebook] = process
            if self._is_over:
                end(process)

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


def folder() -> Path:
    """Return the folder of the notebooks."""
    return _installed("notebooks")


def sample(name: str = "mlp_a100") -> Path:
    """Return the folder of a sample run."""
    return _installed("data") / name


def _installed(name: str) -> Path:
    """Return a folder inside the installed package, or next to the package in a checkout."""
    package = Path(__file__).parents[1]
    return next(p for p in (package / name, package.parent / name) if p.is_dir())


def recorded(run: Run) -> set[str]:
    """Return the tables that the profiles of a run hold and the kinds of these captures; JOB, and RANKS if several."""
    is_several = len(run.profiles) > 1 and len(set(run.capture["rank"])) > 1
    also = {JOB: bool(run.job), RANKS: is_several}
    return {
        *run.kinds,
        *(name for name in also if also[name]),
        *(name for profile in run.profiles for name in profile.loaders),
    }


def answering(run: Run, baseline: Run | None = None) -> list[str]:
    """Return the names of the notebooks that have something to say about this run, or this and an earlier one."""
    tables = recorded(run) | ({BASELINE} if baseline is not None else set())
    return [name for name, needs in NOTEBOOKS.items() if not needs or tables & set(needs)]


def stored(name: str) -> nbformat.NotebookNode:
    """Return a notebook as it is installed; tests have validated it."""
    notebook: nbformat.NotebookNode = nbformat.v4.reads((folder() / f"{name}.ipynb").read_text(encoding="utf-8"))
    return notebook


def title(notebook: nbformat.NotebookNode) -> str:
    """Return the notebook's first heading, which is the question it answers."""
    return str(notebook.cells[0].source).partition("\n")[0].removeprefix("# ")


def execute(names: list[str], parameters: dict[str, Any], *, done: Callable[[str], None]) -> dict[str, Executed]:
    """Run notebooks of `NOTEBOOKS`, several at a time, and return each by its name, or why it failed.

    Each gets those `parameters` that its parameters cell has; one that fails leaves the others. An exception, such as
    Ctrl-C, that leaves this function ends all kernels at once, with their children.
    """
    imported = {n: [line for cell in stored(n).cells for line in _IMPORTED.findall(cell.source)] for n in names}
    parts = {name: [p.strip() for line in lines for p in line.split(",")] for name, lines in imported.items()}
    asking = [_accepted(name, parameters) for name in names if "diagnosis" in parts[name]]
    runs = [{key: value for key, value in given.items() if value and key not in UNSHARED} for given in asking]
    distinct = [run for number, run in enumerate(runs) if "profile" in run and run not in runs[:number]]
    kernels = _Kernels(dict.fromkeys(part for each in parts.values() for part in each), distinct)
    running: Any = import_module("papermill.execute")
    write = import_module("papermill.iorw").write_ipynb  # makes the text, which takes long, also for no path
    running.write_ipynb = lambda notebook, path: path and write(notebook, path)

    def one(name: str) -> Executed:
        try:
            return _executed(name, parameters, kernels)
        finally:
            done(name)

    with warnings.catch_warnings(), ThreadPoolExecutor(min(len(names), os.cpu_count() or 1)) as pool:
        warnings.filterwarnings("ignore", category=UserWarning, module="papermill")
        try:
            longest_first = sorted(names, key=lambda name: -len(stored(name).cells))
            executed = zip(longest_first, pool.map(one, longest_first), strict=True)
            import_module("perfkit.report.html").prepare()  # a core is idle while the runs are prepared
            return dict(sorted(executed, key=lambda each: names.index(each[0])))
        finally:
            kernels.end()


def _executed(name: str, parameters: dict[str, Any], kernels: _Kernels) -> Executed:
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import DeadKernelError
    from zmq import ZMQError

    logging.getLogger("papermill").addHandler(logging.NullHandler())  # what it would print is in the Failure
    try:
        executed: nbformat.NotebookNode = papermill.execute_notebook(
            folder() / f"{name}.ipynb",
            None,  # written when the report is: a full disk is the report's problem, not the notebook's
            _accepted(name, parameters),
            progress_bar=False,
            cwd=os.getcwd(),
            extra_arguments=QUIET,
            kernel_manager_class=kernels.manager(name),
            shell_timeout_interval=1,  # s between two looks whether the kernel lives
        )
    except papermill.PapermillExecutionError as e:
        return Failure(e.ename, elided(e.evalue, LONGEST), e.source)
    except DeadKernelError:
        return Failure("the kernel died", kernels.ending(name))
    except NoSuchKernel as e:
        return Failure("no kernel", f"Jupyter knows no kernel named {e.name!r}; add it with `pip install ipykernel`")
    except (RuntimeError, OSError, ZMQError) as e:  # the kernel did not start
        return Failure("the kernel did not start", kernels.ending(name) or str(e))
    return executed


def _accepted(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return those parameters that a notebook has."""
    sources = [cell.source for cell in stored(name).cells if "parameters" in cell.metadata.get("tags", [])]
    accepted = {line.partition(":")[0] for source in sources for line in source.split("\n")}
    return {key: value for key, value in parameters.items() if key in accepted}


def end(process: subprocess.Popen[Any] | Forked) -> None:
    """Kill a process that leads a group of its own, with its children, if it still runs."""
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def record(
    figures: Iterable[Figure] = (),
    *,
    findings: Iterable[Finding] = (),
    refusals: Iterable[Refusal] = (),
    summary: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Record what a notebook found, for `summary.json` and whoever runs the notebook without a person.

    `summary` is what `perfkit.report.summary` returns.
    """
    from IPython.display import display

    findings = list(findings)
    by_id = {figure.id: figure for figure in (*figures, *(e for f in findings for e in f.evidence))}
    content: dict[str, Any] = {
        "figures": [plain(f) for f in by_id.values()],
        "findings": [plain(f) for f in findings],
        "refusals": [plain(r) for r in refusals],
    }
    counts = ", ".join(f"{len(items)} {kind}" for kind, items in content.items() if items)
    told = finite({**content, "summary": dict(summary)})
    display({MIME: told, "text/plain": f"recorded {counts or 'nothing'}"}, raw=True)
