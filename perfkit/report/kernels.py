"""The kernels of a report, and on Linux the process that has imported what they need and forks them."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from queue import Empty
from typing import Any
from uuid import uuid4

from perfkit.profile import prepare_fork

IS_COMMAND = False  # whether this process is the command `perfkit` alone, no program that has called it
KERNEL = ("-m", "ipykernel_launcher")  # what Jupyter's command for a Python kernel says after the interpreter
# The program of `serve`, which finds perfkit where this process found it; its kernels look where others do.
SERVER = """
import sys
path = [entry for entry in sys.path if entry]
sys.path[:] = sys.argv[3:]
from perfkit.report.kernels import serve
serve(int(sys.argv[1]), sys.argv[2].split(), path)
"""


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
            time.sleep(0.005)
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


class Kernels:
    """The processes of a report's kernels, by notebook, and on Linux the server that forks them."""

    def __init__(self, modules: Iterable[str], runs: Iterable[dict[str, Any]]) -> None:
        self._lock = threading.Lock()
        self._processes: dict[str, Process] = {}
        self._is_over = False
        self._server = Server(modules, runs) if sys.platform == "linux" else None

    def manager(self, notebook: str) -> type:
        """Return a class that starts the kernel of a notebook and adds its process."""
        import zmq
        from jupyter_client.asynchronous.client import AsyncKernelClient
        from jupyter_client.manager import AsyncKernelManager
        from jupyter_client.provisioning.local_provisioner import LocalProvisioner

        class Client(AsyncKernelClient):
            def start_channels(self, *channels: bool, **named: bool) -> None:
                """Start all but the heartbeat: its thread may wait for ever for a kernel that is ending."""
                self.context.setsockopt(zmq.RECONNECT_IVL, 10)  # ms until a kernel that is starting is called again
                super().start_channels(*channels, **{**named, "hb": False})

            async def wait_for_ready(self, timeout: float | None = None) -> None:
                """Ask until the kernel answers on both channels; the class above waits 0.2 s for what else may come."""
                began = time.monotonic()
                while await self._async_is_alive() and time.monotonic() - began < (timeout or 60):
                    self.kernel_info()
                    with suppress(Empty):
                        answer = await self.get_shell_msg(timeout=1)
                        await self.get_iopub_msg(timeout=0.2)
                        self._handle_kernel_info_reply(answer)
                        return
                raise RuntimeError("the kernel does not answer")

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

            async def shutdown_requested(self, restart: bool = False) -> None:
                """Look often for a second whether the kernel has ended; its manager looks every 0.1 s."""
                for _ in range(100):
                    if await self.poll() is not None:
                        break
                    await asyncio.sleep(0.01)

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


def end(process: subprocess.Popen[Any] | Forked) -> None:
    """Kill a process that leads a group of its own, with its children, if it still runs."""
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
