"""One warm kernel in which notebooks run one after the other, and the engine of papermill that uses it.

A kernel that a notebook kills is replaced for the next one.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, cast

import nbformat
import zmq
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from jupyter_core.paths import jupyter_path
from jupyter_core.utils import run_sync
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, papermill_engines
from papermill.exceptions import PapermillExecutionError
from papermill.execute import execute_notebook

from perfkit.report import asking
from perfkit.report.processes import end

__all__ = ["DeadKernelError", "Kernel", "NoKernelError", "PapermillExecutionError", "execute"]


ENGINE = "perfkit"  # the name of the engine at papermill
KERNEL = "python3"  # Jupyter's name of a kernel of the Python that runs this
START = 120  # s that a kernel may take to start on a busy machine
OPTIONS = (
    "--HistoryManager.enabled=False",
    "--IPKernelApp.ignore_cwd=True",  # a file of the user, such as select.py, stands in for no module
)
PACKAGE = Path(__file__).parents[2]
LOG = logging.getLogger("papermill")
LOG.addHandler(logging.NullHandler())  # what it would print is in the failure of a notebook
EXPORTS = "PERFKIT_EXPORTS"  # where a reader puts files that end with the report
RESET = "get_ipython().reset(new_session=True)"


class NoKernelError(RuntimeError):
    """No kernel starts."""


class Kernel:
    """A kernel that stays for the next notebook.

    `setup` is code that runs before the first notebook, in each new kernel.
    """

    def __init__(self) -> None:
        self.setup = ""
        self._is_set_up = False
        self._folder = tempfile.TemporaryDirectory(
            prefix="perfkit-kernel-", ignore_cleanup_errors=True
        )
        self._lock = threading.Lock()
        self._owner: NotebookClient | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False

    def lend(self, runner: NotebookClient) -> None:
        """Give a runner of cells a living kernel without variables; NoKernelError if none starts."""
        self._live()
        if not self._is_set_up:
            self._run(self.setup)
            self._is_set_up = True
        self._run(RESET)
        self._share(runner)

    def ask(self, name: str, given: dict[str, Any]) -> Any:
        """Return what a function of `perfkit.report.pages` returns in the kernel, and raise what it raises.

        DeadKernelError if the kernel ends meanwhile, NoKernelError if none starts.
        """
        folder = Path(self._folder.name)
        self._live()
        self._run(asking.ask(folder, name, given))
        return asking.answered(folder)

    def _live(self) -> None:
        """Start a kernel if none lives."""
        if self._process is not None and self._process.poll() is None:
            return
        self._leave()
        self._is_set_up = False
        try:
            self._start()
        except (OSError, RuntimeError) as e:
            raise NoKernelError(str(e)) from e
        self._run(_paths())

    def _start(self) -> None:
        """Start a kernel and wait until it answers."""
        # With folders given, none is made in HOME for what IPython kept there before 2015.
        kernels = KernelSpecManager(kernel_dirs=jupyter_path("kernels"))
        manager = AsyncKernelManager(
            kernel_name=KERNEL, kernel_spec_manager=kernels, **self._connection()
        )
        self._owner = NotebookClient(
            nbformat.v4.new_notebook(),
            km=manager,
            extra_arguments=[*OPTIONS],
            startup_timeout=START,
            log=LOG,
        )
        path = os.pathsep.join(filter(None, (str(PACKAGE), os.environ.get("PYTHONPATH"))))
        with self._lock:
            if self._is_over:
                raise RuntimeError("the report ended")
            # IPython makes a folder for its settings, elsewhere in HOME, which may be read-only.
            own = {
                "PYTHONPATH": path,
                "IPYTHONDIR": str(Path(self._folder.name, "ipython")),
                EXPORTS: self._folder.name,  # a kernel that is killed removes none of its files
            }
            self._owner.start_new_kernel(
                env={**os.environ, **own},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self._process = cast(LocalProvisioner, manager.provisioner).process
        self._owner.start_new_kernel_client()

    def _connection(self) -> dict[str, str]:
        """Return how the kernel is reached: by files of our own where the system has sockets of names that long."""
        if sys.platform == "win32":
            return {}
        file = {"connection_file": str(Path(self._folder.name, "kernel.json"))}
        longest = os.fsencode(Path(self._folder.name, "kernel-ipc-1000"))  # jupyter_client's names
        return file if len(longest) > zmq.IPC_PATH_MAX_LEN else {**file, "transport": "ipc"}

    def _share(self, runner: NotebookClient) -> None:
        if self._owner is not None:
            runner.km, runner.kc = self._owner.km, self._owner.kc

    def _run(self, code: str) -> None:
        """Run code of which nothing is shown; what it raises, the notebook meets again."""
        cell = nbformat.v4.new_code_cell(code)
        notebook = nbformat.v4.new_notebook(cells=[cell])
        runner = NotebookClient(notebook, allow_errors=True, log=LOG)
        self._share(runner)
        runner.execute_cell(cell, 0, store_history=False)

    def ending(self) -> str:
        """Return how the kernel ended, in words; empty if that is not known."""
        status = self._process.poll() if self._process else None
        if status is None:
            return ""
        if status >= 0:
            return f"it ended with status {status}"
        memory = "; the system does that when memory runs out" if status == -signal.SIGKILL else ""
        return f"signal {signal.Signals(-status).name} ended it{memory}"

    def kill(self) -> None:
        """End the kernel with its children at once, and let no further one start; for another thread."""
        with self._lock:
            self._is_over = True
            process = self._process
        if process:
            end(process)

    def close(self) -> None:
        """End the kernel and clear up after it."""
        self.kill()
        self._leave()
        self._folder.cleanup()

    def _leave(self) -> None:
        """Leave the connections to a kernel that has ended."""
        if self._owner is None:
            return
        if self._owner.kc is not None:
            self._owner.kc.stop_channels()
        if self._owner.km is not None:  # nbclient leaves a kernel that did not start by itself
            run_sync(cast(AsyncKernelManager, self._owner.km).shutdown_kernel)(now=True)
        self._owner = self._process = None


def _paths() -> str:
    """Return code that finds modules where this process does, such as readers from outside, but not in its folder.

    They come last: none stands in for a module that the kernel has.
    """
    here = os.getcwd()
    every = [os.path.abspath(path) for path in sys.path if isinstance(path, str)]
    besides = [path for path in every if os.path.realpath(path) != os.path.realpath(here)]
    return f"import sys; sys.path += [path for path in {besides!r} if path not in sys.path]"


class WarmEngine(Engine):  # type: ignore[misc]  # papermill has no types
    """Runs a notebook in the `Kernel` that `papermill.execute_notebook` is given as `kernel`."""

    @classmethod
    def execute_managed_notebook(
        cls, nb_man: Any, kernel_name: str, *, kernel: Kernel, **_: Any
    ) -> None:
        """Run the cells; nbclient does it, with the manager and client of the kernel."""
        runner = PapermillNotebookClient(nb_man, kernel_name=kernel_name, log=LOG)
        kernel.lend(runner)
        runner.execute(cleanup_kc=False)


papermill_engines.register(ENGINE, WarmEngine)


def execute(notebook: Path, parameters: dict[str, Any], kernel: Kernel) -> nbformat.NotebookNode:
    """Run a notebook in a kernel and return it with its outputs.

    Raises PapermillExecutionError if a cell raises, DeadKernelError if the kernel ends, RuntimeError if none starts.
    """
    executed: nbformat.NotebookNode = execute_notebook(
        notebook,
        None,  # written when the report is: a full disk is the report's problem, not the notebook's
        parameters,
        engine_name=ENGINE,
        kernel_name=KERNEL,
        progress_bar=False,
        cwd=os.getcwd(),
        kernel=kernel,
    )
    return executed
