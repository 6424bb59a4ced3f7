"""What is a file that no reader claims? Files of other tools, by name or content, and what to do instead."""

import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from perfkit.format import utf8
from perfkit.readers.text import head

LOOKED_AT = 1 << 16  # bytes at the start of a file, unpacked
GZIP = b"\x1f\x8b"
GZIP_WINDOW = 31  # of zlib: the largest window, and the header of gzip
TRACE = "with torch.profiler.profile(...) as prof: ..., then prof.export_chrome_trace('trace.json')"
EXPORT = "`nsys export -t sqlite run.nsys-rep`"
TIMELINE = f"Record `nsys profile --trace=cuda,nvtx,osrt -o run PROGRAM`, then run {EXPORT}."
ON_AMD = (
    "Record again with `rocprofv3 --sys-trace --output-format rocpd -- PROGRAM`, and load the "
    "`.db`."
)
RUN_IT = "perfkit reads what a profiler recorded of it. " + TIMELINE


@dataclass(frozen=True)
class Foreign:
    """A kind of file of another tool: what it is, what to do instead, and how to tell it.

    One of three tells it: the first bytes of the file, a pattern that its first 64 KB hold, or the
    end of its name. gzip is unpacked first.
    """

    what: str
    instead: str
    begins: tuple[bytes, ...] = ()
    holds: bytes = b"(?!)"
    named: str = "(?!)"

    def is_it(self, name: str, start: bytes) -> bool:
        """Say whether a file with this name and beginning is of this kind."""
        if start.startswith(self.begins) or re.search(self.holds, start):
            return True
        return re.search(rf"(?:{self.named})\Z", name, re.IGNORECASE) is not None


# The first kind that fits counts: what is inside of an archive or a database goes before these.
FOREIGN = (
    # Damaged and other forms of what perfkit reads
    Foreign(
        "no report of Nsight Systems, though it is called so: it begins as none does",
        f"Copy it again, and run {EXPORT} where nsys is installed.",
        named=r"\.nsys-rep|\.qdrep",
    ),
    Foreign(
        "no report of Nsight Compute, though it is called so: it begins as none does",
        "Copy it again, or print its page: `ncu --import REPORT --csv --page raw`.",
        named=r"\.ncu-rep",
    ),
    Foreign(
        "what `nsys stats` prints: sums by kernel or call, without times",
        f"Load the export of the same report (`.sqlite`), or make one with {EXPORT}.",
        holds=rb"Time \(%\)\"?,\"?Total Time \(ns\)|Time \(%\)\s+Total Time \(ns\)\s+",
    ),
    Foreign(
        "an HDF5 file, a form of `nsys export` that perfkit does not read",
        f"Export the report with {EXPORT}.",
        begins=(b"\x89HDF",),
    ),
    Foreign(
        "one table of Parquet or Arrow",
        "Load the folder that `nsys export -t parquetdir` wrote, with all its tables.",
        begins=(b"PAR1", b"ARROW1"),
    ),
    Foreign(
        "a packed report of Nsight Compute",
        (
            "Save it unpacked in Nsight Compute (`.ncu-rep`), or print its page: `ncu --import "
            "REPORT --csv --page raw`."
        ),
        named=r"\.ncu-repz",
    ),
    Foreign(
        "the table that key_averages() of PyTorch's profiler prints; it holds sums and no times",
        f"Save the trace: {TRACE}.",
        holds=rb"Self C(?:PU|UDA) [^\n]*# of Calls",
    ),
    # Profilers that NVIDIA no longer develops
    Foreign(
        "a database of nvprof or the Visual Profiler, which NVIDIA no longer develops",
        TIMELINE,
        holds=rb"(?s)\ASQLite format 3.*TABLE \W?StringTable\b",
        named=r"\.nvvp|\.nvprof",
    ),
    Foreign(
        "the output of nvprof, which NVIDIA no longer develops",
        f"{TIMELINE} Single kernels: `ncu --set full -o report PROGRAM`.",
        holds=rb"==\d+== (?:NVPROF is profiling|Profiling (?:application|result))"
        rb"|\"Type\",\"Time\(%\)\",\"Time\",\"Calls\"|\"?Start\"?,\"?Duration\"?,\"?Grid X\"?",
    ),
    # Profilers of AMD's GPUs
    Foreign(
        "a trace of rocprof as CSV, whose files do not say which call launched which kernel",
        ON_AMD,
        holds=rb"\A[^\n]*(?:\"Kind\",\"Agent_Id\"|\"Name\",\"Calls\",\"TotalDurationNs\""
        rb"|Index,KernelName,gpu-id|Dispatch_I[Dd]\"?,)",
    ),
    Foreign(
        (
            "a trace of Perfetto (rocprofv3 and others write them), whose messages perfkit does "
            "not read"
        ),
        f"{ON_AMD} On NVIDIA's GPUs: {TIMELINE}",
        named=r"\.pftrace|\.perfetto-trace|\.perfetto",
    ),
    Foreign(
        "a database of rocmProfileData or of rocprofv2",
        ON_AMD,
        holds=rb"(?s)\ASQLite format 3.*(?:rocpd_op\b|TABLE \W?KERN\b)",
    ),
    # Frameworks
    Foreign(
        "an XPlane of TensorFlow or JAX, whose messages perfkit does not read",
        TIMELINE,
        named=r"\.xplane\.pb",
    ),
    Foreign(
        "events of TensorBoard: curves of a training, nothing that a GPU did",
        f"Save a trace of some steps: {TRACE}.",
        named=r"events\.out\.tfevents\..*",
    ),
    Foreign(
        "a run of Weights & Biases: curves of a training, nothing that a GPU did",
        f"Save a trace of some steps: {TRACE}.",
        begins=(b":W&B",),
        named=r"\.wandb|wandb-(?:summary|metadata)\.json|debug-internal\.log",
    ),
    Foreign(
        (
            "an execution trace of Chakra, which holds the operators' order and no times of the "
            "GPU's work"
        ),
        f"Save the trace of the profiler: {TRACE}.",
        holds=rb"\A\s*\{\s*\"schema\":\s*\"[\d.]+-chakra",
        named=r"\.et|\.chakra",
    ),
    Foreign(
        "a profile of ONNX Runtime: times on the CPU alone",
        TIMELINE,
        holds=rb"\A\[\s*\{\"cat\"\s*:\s*\"Session\"",
    ),
    Foreign(
        "a tree of Triton's Proton: sums by kernel, without times",
        f"{TIMELINE} The tree itself: `proton-viewer -m time/ms FILE`.",
        holds=rb"\A\[\s*\{\s*\"children\":.*\"(?:frame|metrics)\":",
        named=r"\.hatchet",
    ),
    Foreign(
        (
            "a trace of Triton Inference Server; it holds the times of requests and nothing that "
            "a GPU did"
        ),
        "Record the server with `nsys profile --trace=cuda,nvtx,osrt -o run tritonserver ...`.",
        holds=rb"\A\s*\[\s*\{\"id\":\d+,\"(?:timestamps|model_name|activity)\":",
    ),
    Foreign(
        "a log of Triton Inference Server, which holds nothing that a GPU did",
        "Record the server with `nsys profile --trace=cuda,nvtx,osrt -o run tritonserver ...`.",
        holds=rb"\A[IWE]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ [\w.]+:\d+\]",
    ),
    Foreign(
        "a checkpoint: weights of a model, no profile",
        f"Save a trace of some steps: {TRACE}.",
        holds=rb"(?s)\APK.*/data\.pkl",
        named=r"\.pt|\.pth|\.ckpt|\.safetensors|\.gguf|\.onnx",
    ),
    # Other monitors and profilers
    Foreign(
        "a log of tegrastats, which perfkit does not read",
        f"{TIMELINE} (Jetson has nsys, and no nvidia-smi that logs.)",
        holds=rb"\bRAM \d+/\d+MB [^\n]*(?:GR3D|CPU \[)",
    ),
    Foreign(
        "a profile of the CPU alone, which perfkit does not read",
        f"Record CPU and GPU together. {TIMELINE}",
        begins=(b"PERFILE2", b"memray\x00"),
        holds=rb"https://www\.speedscope\.app",
        named=r"\.prof|\.pstats|perf\.data",
    ),
    # What is no profile at all
    Foreign(
        "a pickle of Python, which perfkit does not open: it can run code",
        f"Save a trace instead: {TRACE}.",
        begins=(b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"),
    ),
    Foreign(
        "a picture",
        "Load the file that it was drawn from.",
        begins=(b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"%PDF"),
        named=r"\.svg|\.webp",
    ),
    Foreign(
        "an archive, and perfkit opens none",
        "Unpack it with `unzip FILE -d FOLDER`, and load the folder.",
        begins=(b"PK\x03\x04", b"PK\x05\x06"),
    ),
    Foreign(
        "an archive, and perfkit opens none",
        "Unpack it with `tar xf FILE`, and load what was in it.",
        holds=rb"(?s)\A.{257}ustar",
        named=r"\.tar(?:\.\w+)?|\.tgz",
    ),
    Foreign(
        "a packed file, and perfkit unpacks only gzip",
        (
            "Unpack it with `7z x FILE`, or with zstd, xz or bzip2 (option -d), and load what was "
            "in it."
        ),
        begins=(b"7z\xbc\xaf", b"\xfd7zXZ", b"BZh", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"),
    ),
    Foreign(
        "a web page, perhaps in the place of a file that was to be downloaded",
        "Download the file itself; of a report of perfkit load the run.",
        holds=rb"(?i)\A\s*<(?:!doctype html|html)\b",
    ),
    Foreign("a program", RUN_IT, begins=(b"\x7fELF", b"MZ", b"#!")),
    Foreign("a program's source", RUN_IT, named=r"\.(?:py|cu|cuh|cpp|cc|c|h|sh|jl|ipynb)"),
)


def described(path: Path) -> str | None:
    """Return what a file of another tool is and what to do instead, in sentences; None for an unknown file."""
    start = unpacked(path)
    known = next((kind for kind in FOREIGN if kind.is_it(path.name, start)), None)
    return f"this is {known.what}. {known.instead}" if known else None


def unpacked(path: Path) -> bytes:
    """Return how a file begins, unpacked where it is gzip; empty where it cannot be opened or unpacked."""
    start = head(path, LOOKED_AT)
    if not start.startswith(GZIP):
        return start
    try:
        return utf8(zlib.decompressobj(GZIP_WINDOW).decompress(start, LOOKED_AT))
    except zlib.error:
        return b""
