"""The process of a student's notebook: it runs the cells, and answers what the tests ask its functions.

It runs in the sandbox. Everything in it belongs to the student's program once a cell has run, so nothing that it says
is believed but as an answer. A request is one line of JSON, and so is a reply.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import resource
import signal
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit.course.answers import encode

FILES = Path("/files")  # what the student handed in, to read
LONGEST = 500  # characters of an error's text
LIMITS = {
    "memory_bytes": "RLIMIT_AS",
    "cpu_s": "RLIMIT_CPU",
    "processes": "RLIMIT_NPROC",
    "file_bytes": "RLIMIT_FSIZE",
}


def main() -> None:
    """Answer requests until there are no more."""
    requests, replies = _channel()
    limits = json.loads(requests.readline())
    _limit(limits)
    _link_files()
    shell = _shell()
    signal.signal(signal.SIGALRM, _too_long)
    for line in requests:
        reply = _reply(shell, json.loads(line), limits["request_s"])
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _channel() -> tuple[Any, Any]:
    """Return the files of requests and replies, and let the student's program read and print nothing there."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    return requests, replies


def _limit(limits: dict[str, int]) -> None:
    """Set the limits of this process and of its children; nobody can raise them again."""
    for name, number in LIMITS.items():
        resource.setrlimit(getattr(resource, number), (limits[name], limits[name]))


def _link_files() -> None:
    """Let the files of the submission appear in this process's folder."""
    if FILES.is_dir():
        for path in FILES.iterdir():
            Path(path.name).symlink_to(path)


def _shell() -> Any:
    """Return a shell as a notebook's kernel has one, so that its commands such as %time work."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    settings = Config()
    settings.HistoryManager.enabled = False
    return InteractiveShell.instance(config=settings)


def _reply(shell: Any, request: dict[str, Any], request_s: int) -> dict[str, Any]:
    """Run a cell, or a function, as long as it may take."""
    signal.alarm(request_s)
    try:
        return _run(shell, request) if "cell" in request else _ask(shell, request)
    except BaseException as e:  # noqa: BLE001 whatever a student's program raises is an answer
        return {"error": [type(e).__name__, str(e)[:LONGEST]]}
    finally:
        signal.alarm(0)


def _run(shell: Any, request: dict[str, Any]) -> dict[str, Any]:
    done = shell.run_cell(request["cell"], store_history=False)
    done.raise_error()
    return {}


def _ask(shell: Any, request: dict[str, Any]) -> dict[str, Any]:
    args, named = pickle.loads(zlib.decompress(base64.b64decode(request["arguments"])))
    name: str = request["ask"]
    if name not in shell.user_ns:
        raise NameError(f"name {name!r} is not defined")
    function: Callable[..., Any] = shell.user_ns[name]
    return {"answer": encode(function(*args, **named))}


def _too_long(number: int, frame: Any) -> None:
    raise TimeoutError("it ran longer than it may")


if __name__ == "__main__":
    sys.argv = sys.argv[:1]
    main()
