"""The explorer of a large capture: ready from the cache, and at each gesture, in Python and to the drawn picture.

The cache is warm. A gesture's figure is the most of some times. In Python it is CPU seconds, which a busy machine
does not lengthen; in JupyterLab, seconds from the first event of the gesture, such as the press of a button, until the
picture tells of the choice: a page that is slow to follow a drag counts. There the memory is the most that the
notebook's kernel held.
"""

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import perfkit
from perfkit.widgets.choice import Explorer
from tests.bench import captures, fresh
from tests.bench.table import Row

READY_S, PYTHON_S, DRAWN_S, MOST_BYTES = 3.0, 0.15, 0.5, 4e9
TIMES = 3
EMPTY = 28  # kernels of a chart that is all but empty
DRAWN_LIMIT_MS = 300_000.0  # for a picture on a busy machine
RESTED_MS = 300.0  # until the next gesture: a picture that is being drawn cannot be dragged
SETTLED_S = 4.0  # after which a person who looked at the whole recording first zooms in
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
NOTEBOOK = "import perfkit\nfrom perfkit import widgets\nexplorer = widgets.explorer(perfkit.load({path!r}))\nexplorer"


def rows(kernels: int) -> Iterator[Row]:
    """Measure one GPU, eight GPUs of five streams (and NCCL's), and 16 ranks; yields the rows of the table."""
    made = {"": captures.made(kernels), " of 8 GPUs x 5 streams": captures.made(kernels, "eight")}
    for of, path in {**made, " of 16 ranks": captures.ranks(16, kernels // 16)}.items():
        size = f"explorer, {kernels:,} kernels{of}"
        with tempfile.TemporaryDirectory(dir=captures.FOLDER) as folder:
            cache = Path(folder, "cache")
            fresh.call(read_whole, path, cache=cache)
            measured = fresh.call(in_python, path, cache=cache)
            for work, (wall_s, cpu_s) in measured.answer.items():
                most_s = READY_S if work == "ready" else PYTHON_S
                peer = f"none; {wall_s:.3g} s on the clock"
                bar = f"under {most_s} s CPU, {MOST_BYTES / 1e9:g} GB"
                limits = {
                    "most_seconds": most_s,
                    "most_bytes": MOST_BYTES,
                    "peak_bytes": measured.peak_bytes,
                }
                yield Row(f"{size}, {work}, in Python", cpu_s, peer, None, bar=bar, **limits)
            yield from _browser_rows(path, cache, size)


def read_whole(path: str) -> None:
    """Fill the cache, also with the calls, which an explorer reads beside all else."""
    run = perfkit.load(path)
    assert len(run.api_calls)
    Explorer(run)


def in_python(path: str) -> dict[str, tuple[float, float]]:
    """Return the seconds, on the clock and of the CPU, until the explorer is ready and of each gesture."""
    ready = fresh.timed(lambda: Explorer(perfkit.load(path)))
    found, explorer = {"ready": ready[:2]}, ready.answer
    time.sleep(SETTLED_S)
    start, length = explorer.lanes.span[0], explorer.lanes.span[1] - explorer.lanes.span[0]
    for turn in range(TIMES):
        first = start + (turn + 1) * length // (TIMES + 2)
        gestures: dict[str, dict[str, Any]] = {
            "brush": {"window": (first, first + length // 5)},
            "zoom to 20 ms": {"window": (first, first + 20_000_000)},
            "zoom to 1 ms": {"window": (first, first + 1_000_000)},
            "whole recording": {"window": ()},
            "kernels by name": {"kernels": ("sgemm", "reduce", "elementwise")[turn]},
            "kernels by family": {
                "kernels": "",
                "families": (("gemm", "reduction", "elementwise")[turn],),
            },
            "GPU": {"families": (), "gpus": (0,)},
            "all": {"gpus": ()},
        }
        for work, choices in gestures.items():
            taken = fresh.timed(lambda choices=choices: explorer.choose(**choices))[:2]
            found[work] = max(taken, found.get(work, taken), key=lambda seconds: seconds[1])
    return found


def _browser_rows(path: Path, cache: Path, size: str) -> Iterator[Row]:
    if (chromium := next(filter(None, map(shutil.which, CHROMIUM)), None)) is None:
        yield Row(
            f"{size}, in JupyterLab", None, "no Chromium on PATH", None, bar=f"under {DRAWN_S} s"
        )
        return
    empty, _ = in_browser(chromium, captures.made(EMPTY), cache)
    drawn, peak = in_browser(chromium, path, cache)
    for work, wall_s in drawn.items():
        limits = {
            "most_seconds": None if work == "run" else DRAWN_S,
            "most_bytes": MOST_BYTES,
            "peak_bytes": peak,
        }
        bar = (
            f"{MOST_BYTES / 1e9:g} GB"
            if work == "run"
            else f"under {DRAWN_S} s, {MOST_BYTES / 1e9:g} GB"
        )
        peer = "the same of an empty chart", empty.get(work)
        yield Row(f"{size}, {work}, drawn in JupyterLab", wall_s, *peer, bar=bar, **limits)


def in_browser(chromium: str, path: Path, cache: Path) -> tuple[dict[str, float], int]:
    """Return the seconds until each gesture's picture is drawn, and the most bytes that the kernel held."""
    from playwright.sync_api import sync_playwright

    from tests.browser.exploring import Exploring
    from tests.browser.lab import Lab, Page

    with (
        tempfile.TemporaryDirectory(dir=captures.FOLDER) as folder,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        lab = Lab(Path(folder), cache=cache)
        try:
            page = Page(browser.new_page(viewport={"width": 1400, "height": 1300}), lab)
            page.open(lab.write("explorer", NOTEBOOK.format(path=str(path))))
            began = time.perf_counter()
            page.run_cells()
            exploring = Exploring(page.tab)
            exploring.until_title("operation", timeout=DRAWN_LIMIT_MS)
            found = {"run": time.perf_counter() - began}
            page.tab.wait_for_timeout(1000 * SETTLED_S)
            for _ in range(TIMES):
                for work, seconds in _gestures(exploring):
                    found[work] = max(seconds, found.get(work, 0.0))
            peak = (
                exploring.ask("__import__('resource').getrusage(0).ru_maxrss") * fresh.MAXRSS_BYTES
            )
            page.close()
            return found, peak
        finally:
            lab.stop()
            browser.close()


def _gestures(exploring: Any) -> Iterator[tuple[str, float]]:
    """Use wheel, keys and mouse as a person does; yields each gesture's name and the seconds until it is drawn."""
    from tests.browser.exploring import OVERVIEW, ROOT, TIMELINE

    tab = exploring.tab

    def drawn(gesture: Callable[[], object]) -> float:
        before = exploring.spoken
        began = time.perf_counter()
        gesture()
        exploring.until_drawn_after(before, timeout=DRAWN_LIMIT_MS)
        taken = time.perf_counter() - began
        tab.wait_for_timeout(RESTED_MS)
        return taken

    def held(key: str, gesture: Callable[[], object]) -> None:
        tab.keyboard.down(key)
        gesture()
        tab.keyboard.up(key)

    yield "brush", drawn(lambda: exploring.drag(OVERVIEW, 0.3, 0.5))
    exploring.point(0.5)
    tab.evaluate(f"{ROOT}.focus({{preventScroll: true}})")
    yield "wheel", drawn(lambda: tab.mouse.wheel(0, -240))
    yield "Ctrl+wheel", drawn(lambda: held("Control", lambda: tab.mouse.wheel(0, 60)))
    yield "Shift+wheel", drawn(lambda: held("Shift", lambda: tab.mouse.wheel(0, 120)))
    for key in ("w", "a", "d", "s", "ArrowUp", "ArrowLeft", "ArrowRight", "ArrowDown", "u"):
        yield f"key {key}", drawn(lambda key=key: tab.keyboard.press(key))
    yield "Shift+drag", drawn(lambda: held("Shift", lambda: exploring.drag(TIMELINE, 0.4, 0.6)))
    while (found := re.search(r"([\d,]+) operation", exploring.title)) and int(
        found[1].replace(",", "")
    ) > 1000:
        yield "zoom", drawn(lambda: exploring.drag(TIMELINE, 0.4, 0.48))
    yield "whole recording", drawn(lambda: exploring.press("Reset"))
    yield "kernels by name", drawn(lambda: exploring.type("kernels", "sgemm"))
    yield "all", drawn(lambda: exploring.press("Reset"))
