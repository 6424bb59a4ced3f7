"""Which command records a program, by what the installed tool says that it knows."""

from pathlib import Path

import pytest

from perfkit.errors import PerfkitError
from perfkit.recorders import tools
from perfkit.recorders.tools import TOOLS, Wish
from perfkit.workloads import torch_launcher

# Lines of the help of Nsight Systems 2022.4, of Nsight Compute 2022.3 and of nvidia-smi.
NSYS_2022 = """
\t--cuda-graph-trace=
\t--cudabacktrace=
\t--gpu-metrics-device=
\t-s, --sample=
\t   Possible values are 'cuda', 'nvtx', 'cublas', 'mpi', 'osrt', 'cudnn' or 'none'.
"""
TWO_GPUS = """Possible --gpu-metrics-device values are:
\t0: NVIDIA GeForce GTX 960 (not supported)
\t1: NVIDIA GeForce RTX 3080
\tnone: Disable GPU Metrics [Default]
"""
NO_GPU = (
    "Possible --gpu-metrics-device values are:\n\tNVIDIA GPUs not found, feature is not available"
)
DMON = """
    [-s | --select]:      One or more metrics [default=puc]
                          Can be any of the following:
                              p - Power Usage and Temperature
                              u - Utilization
                              c - Proc and Mem Clocks
                              m - FB Memory
"""
PROGRAM = ("python", "-u", "train.py", "--lr", "1")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], str]:
    """What the tools print, by command; nothing where they are not installed."""
    answers: dict[tuple[str, ...], str] = {}
    monkeypatch.setattr(tools, "answer", lambda *words: answers.get(words, ""))
    return answers


def main(tool: str, wish: Wish) -> list[str]:
    return list(TOOLS[tool].plan(wish).main.argv)


def wish(**more: object) -> Wish:
    return Wish(PROGRAM, Path("/out/run"), **more)  # type: ignore[arg-type]


def test_without_nsys_the_command_has_the_options_of_a_current_version(said: object) -> None:
    expected = "nsys profile --trace=cuda,nvtx,osrt --gpu-metrics-devices=all"
    expected += " --cuda-graph-trace=node -o /out/run python -u train.py --lr 1"
    assert expected.split() == main("nsys", wish())


@pytest.mark.parametrize(
    ("listed", "options"), [(TWO_GPUS, ["--gpu-metrics-device=1"]), (NO_GPU, [])]
)
def test_nsys_samples_the_counters_of_the_gpus_that_it_lists(
    listed: str, options: list[str], said: dict[tuple[str, ...], str]
) -> None:
    said["nsys", "profile", "--help"] = NSYS_2022
    said["nsys", "profile", "--gpu-metrics-device=help"] = listed
    found = [word for word in main("nsys", wish()) if word.startswith("--gpu-metrics")]
    assert options == found


def test_nsys_gets_no_option_that_it_does_not_know(said: dict[tuple[str, ...], str]) -> None:
    said["nsys", "profile", "--help"] = NSYS_2022.replace("\t--cuda-graph-trace=\n", "")
    assert "--cuda-graph-trace=node" not in main("nsys", wish())


def test_nsys_begins_and_ends_by_the_clock(said: object) -> None:
    words = main("nsys", wish(delay_s=60, duration_s=20))
    assert {"--delay=60", "--duration=20", "--kill=sigterm"} <= set(words)


def test_nsys_exports_to_sqlite(said: object) -> None:
    (export,) = TOOLS["nsys"].plan(wish()).exports
    assert "nsys export --type=sqlite --output=/out/run.sqlite /out/run.nsys-rep" == " ".join(
        export.argv
    )


def test_ncu_measures_a_few_launches_of_the_kernels_that_are_named(said: object) -> None:
    words = main("ncu", wish(functions=("gemm", "softmax"), skipped=200, launches=9))
    expected = "--kernel-name regex:^(gemm|softmax)$ --launch-skip 200 --launch-count 9"
    assert expected in " ".join(words)


@pytest.mark.parametrize(
    ("program", "place"),
    [
        (["python", "-u", "train.py", "--lr", "1"], 2),
        (["torchrun", "--nproc_per_node", "2", "train.py"], 3),
        (["python", "-m", "torch.distributed.run", "train.py"], 3),
        (["python", "-m", "package.train", "--lr"], 1),
    ],
)
def test_the_launcher_stands_before_the_script(
    program: list[str], place: int, said: object
) -> None:
    words = main("torch", Wish(tuple(program), Path("/out/run"), duration_s=20))
    launcher = [str(Path(torch_launcher.__file__).resolve()), "/out", "0", "20", "go"]
    assert [*program[:place], *launcher, *program[place:]] == words


def test_a_program_without_a_script_is_refused(said: object) -> None:
    with pytest.raises(PerfkitError, match=r"\./a\.out: names no Python script"):
        TOOLS["torch"].plan(Wish(("./a.out",), Path("/out/run")))


def test_dmon_selects_what_it_knows(said: dict[tuple[str, ...], str]) -> None:
    said["nvidia-smi", "dmon", "-h"] = DMON
    beside = TOOLS["smi"].plan(wish()).beside
    assert beside is not None
    assert "nvidia-smi dmon -s pucm -o DT -f /out/run.log" == " ".join(beside.argv)


@pytest.mark.parametrize(
    ("events", "option"),
    [("", "gpu=nvidia,pc"), ("gpu=cuda ...", "gpu=cuda,pc"), ("gpu=rocm ...", "gpu=rocm")],
)
def test_hpcrun_gets_the_event_of_the_gpus_that_it_knows(
    events: str, option: str, said: dict[tuple[str, ...], str]
) -> None:
    said["hpcrun", "-L"] = events
    assert option in main("hpctoolkit", wish())
