"""Paths as a user gives them: what does not exist or cannot be read is refused before anything large is imported."""

import os
import re
import shlex
import stat
from pathlib import Path

from perfkit.errors import ReadError

# What is neither a file nor a folder: to open it may wait for ever, or take what belongs to another program.
SPECIAL = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
URL = re.compile(r"([a-z][a-z0-9+]+):/+(.+)")  # pathlib makes one of two slashes
DOWNLOADS = {
    "s3": "aws s3 cp {url} .",
    "gs": "gcloud storage cp {url} .",
}
BY_HTTP = "curl -LO {url}"


def check(path: Path) -> Path:
    """Return a path that exists and can be read; ReadError says what is wrong with any other."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            os.scandir(path).close()
    except (FileNotFoundError, NotADirectoryError):
        raise ReadError(_absent(path)) from None
    except OSError as e:
        raise ReadError(
            f"{path}: cannot be looked at ({e.strerror}). Check the path and its permissions."
        ) from e
    except ValueError as e:
        raise ReadError(f"{path}: no path of a file ({e}). Check the path.") from e
    kind = SPECIAL.get(stat.S_IFMT(mode))
    if kind:
        raise ReadError(
            f"{path}: {kind}, not a file. Write what it delivers to a file, and load that."
        )
    return path


def _absent(path: Path) -> str:
    address = URL.fullmatch(str(path))
    if not address:
        return f"{path}: no such file or folder. Check the path."
    scheme, rest = address.groups()
    url = f"{scheme}://{rest}"
    command = DOWNLOADS.get(scheme, BY_HTTP).format(url=shlex.quote(url))
    return f"{url}: an address, and perfkit downloads nothing. Run `{command}`, and load the file."


def is_special(path: Path) -> bool:
    """Tell whether something in a folder is neither a file nor a folder, or cannot be looked at."""
    try:
        return stat.S_IFMT(path.stat().st_mode) in SPECIAL
    except OSError:
        return False  # a link to nothing, which is named by its suffix like a file
