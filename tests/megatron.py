"""Logs of trainings as Megatron writes them."""

from pathlib import Path


def training(file: Path, *, gpus: int, ms: int, batch: int = 8) -> None:
    """Five iterations on some GPUs, a line each 2 s: the first takes three times as long, the others 1 ms more each."""
    lines = [f"using world size: {gpus}, data-parallel-size: {gpus}"]
    lines += [
        f" [2024-01-01 00:00:{2 * i:02d}] iteration {i}/ 5 | consumed samples: 8 | elapsed time per iteration (ms): "
        f"{3 * ms if i == 1 else ms + i}.0 | global batch size: {batch} | lm loss: 1.0 |"
        for i in range(1, 6)
    ]
    file.write_text("\n".join([*lines, ""]), encoding="utf-8")
