"""Run a student's program where it sees perfkit, Python and its own submission, and nothing else of this machine.

bubblewrap makes the sandbox where it is installed, else `unshare` with a user namespace. In both, the program has its
own list of processes and users, no network, no home folder, and an empty temporary folder. Everything else that it
sees is read-only.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import perfkit
from perfkit.course.student import FILES
from perfkit.errors import PerfkitError
from perfkit.report.notebooks import sample

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
LIBRARIES = ("site-packages", "dist-packages")
WORK = "/tmp/work"
SCRATCH_BYTES = 512 * 2**20  # of all files that the program writes
NONE = "none"
TRIAL_S = 60
PATH = f"{os.defpath}:/usr/sbin:/sbin"
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
NEEDED = ("unshare", "setpriv", "pivot_root", "findmnt")
REFUSAL = (
    "this machine has no sandbox: neither bubblewrap (`bwrap`) nor a user namespace (`unshare`) works. Install "
    "bubblewrap, or grade in an account that you can afford to lose and add --unsafe."
)


# A mount cannot be made read-only without the options that it already has.
SCRIPT = """
PATH={path}
root={root}
show() {{
    if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$root${{2%/*}}"; : > "$root$2"; fi
    mount --rbind "$1" "$root$2"
}}
mount --make-rprivate /
mount -t tmpfs -o size=1m,nosuid,nodev tmpfs "$root"
mkdir "$root/proc" "$root/tmp" "$root/old"
mount -t tmpfs -o size={size},nosuid,nodev tmpfs "$root/tmp"
{shown}
findmnt -rno TARGET,VFS-OPTIONS -R "$root" | while read -r place options; do
    case "$place" in "$root" | "$root/tmp") continue ;; esac
    mount -o "remount,bind,$options,ro" "$place"
done
mount -t proc proc "$root/proc"
echo 0 > "$root/proc/sys/user/max_user_namespaces"
mount -o remount,bind,ro,nosuid,nodev,noexec "$root/proc"
mkdir "$root{work}"
cd "$root"
pivot_root . old
umount -l /old
rmdir /old
mount -o remount,bind,ro,nosuid,nodev /
cd {work}
exec setpriv --no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set=-all -- "$@"
"""


@dataclass(frozen=True)
class Limits:
    """What one notebook may use."""

    request_s: int = 120
    total_s: int = 1800
    cpu_s: int = 900
    memory_bytes: int = 4 * 2**30
    processes: int = 64
    file_bytes: int = 256 * 2**20


def tool(is_unsafe: bool = False) -> str:
    """Return the sandbox that works here: bwrap, unshare, or none if that is allowed.

    Raises PerfkitError if none works and `is_unsafe` does not allow that.
    """
    for name in ("bwrap", "unshare"):
        if _works(name):
            return name
    if is_unsafe:
        return NONE
    raise PerfkitError(REFUSAL)


def command(name: str, program: Sequence[str], box: Path) -> list[str]:
    """Return the command that runs a program in the sandbox `name`.

    `box` is a folder of the grading process: in it, `files` holds the submission, and `root` is empty.
    """
    if name == "bwrap":
        return [*_bubblewrap(box), *program]
    if name == "unshare":
        return [*_unshare(), "sh", "-euc", _script(box), "sh", *program]
    return list(program)


def environment(name: str, box: Path) -> dict[str, str]:
    """Return the environment of the program: nothing of this process's own but what Python needs."""
    place = str(box / "work") if name == NONE else WORK
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(_package().parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": place,
        "TMPDIR": place,
        "PERFKIT_CACHE": f"{place}/.cache",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def readable() -> list[Path]:
    """Return the folders that a program may read: the system's, Python, perfkit, and the sample runs."""
    system = [Path(place) for place in SYSTEM if os.path.exists(place)]
    own = {Path(sys.prefix), Path(sys.base_prefix), _package(), sample().parent, *_libraries()}
    places = list(system)
    for place in sorted(each.resolve() for each in own):
        if not any(place.is_relative_to(each) for each in places):
            places.append(place)
    return places


def _libraries() -> list[Path]:
    """Return the folders of installed packages: an environment may take some from another one."""
    places = map(Path, sys.path)
    return [place for place in places if place.name in LIBRARIES and place.is_dir()]


def doubts(name: str, hidden: Sequence[Path]) -> list[str]:
    """Return what an instructor should know of this sandbox.

    Raises PerfkitError if a program could read one of the places in `hidden`.
    """
    if name == NONE:
        return ["there is no sandbox: submissions can read and change all that you can"]
    for place in hidden:
        for folder in readable():
            if place.resolve().is_relative_to(folder):
                raise PerfkitError(
                    f"{place}: every submission could read it in {folder}. Move it elsewhere."
                )
    is_root = os.geteuid() == 0
    return ["you are root: the limit of processes does not hold; use another account"] * is_root


def _package() -> Path:
    return Path(perfkit.__file__).parent.resolve()


def _works(name: str) -> bool:
    """Return whether a program runs in this sandbox."""
    needed = NEEDED if name == "unshare" else (name,)
    if not all(map(_path, needed)):
        return False
    with TemporaryDirectory() as folder:
        box = Path(folder)
        prepare(box)
        asked = command(name, [sys.executable, "-c", ""], box)
        done = subprocess.run(
            asked, env=environment(name, box), capture_output=True, check=False, timeout=TRIAL_S
        )
    return done.returncode == 0


def prepare(box: Path) -> None:
    """Make the folders that a sandbox needs."""
    for name in ("files", "root", "work"):
        (box / name).mkdir()


def _path(name: str) -> str | None:
    """Return where a program of the system is."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{PATH}")


def _bubblewrap(box: Path) -> list[str]:
    words = [str(_path("bwrap")), "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]
    words += ["--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp"]  # what is shown may lie below it
    for place in (*readable(), *_settings()):
        words += ["--ro-bind", str(place), str(place)]
    words += ["--ro-bind", str(box / "files"), str(FILES)]
    words += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    return [*words, "--dir", WORK, "--chdir", WORK, "--remount-ro", "/"]


def _settings() -> list[Path]:
    return [Path(place) for place in SETTINGS if os.path.exists(place)]


def _unshare() -> list[str]:
    spaces = ["--user", "--map-root-user", "--mount", "--pid", "--net", "--ipc", "--uts"]
    dying = [str(_path("setpriv")), "--pdeathsig", "KILL"]  # it ends with the grading process
    return [*dying, str(_path("unshare")), *spaces, "--fork", "--kill-child"]


def _script(box: Path) -> str:
    """Return a shell script that makes the sandbox's root, goes there, gives up its rights and runs its words."""
    binds = [(str(place), str(place)) for place in (*readable(), *_settings(), *map(Path, DEVICES))]
    binds.append((str(box / "files"), str(FILES)))
    shown = "\n".join(f"show {shlex.quote(place)} {shlex.quote(where)}" for place, where in binds)
    root = shlex.quote(str(box / "root"))
    return SCRIPT.format(path=PATH, root=root, shown=shown, work=WORK, size=SCRATCH_BYTES)
