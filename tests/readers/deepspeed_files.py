"""Small reports of DeepSpeed's Flops Profiler, old and new, and iteration lines of Megatron."""

from collections.abc import Mapping

TITLE = "-------------------------- DeepSpeed Flops Profiler --------------------------"
AGGREGATED = (
    "----------------------------- Aggregated Profile per GPU -----------------------------"
)

# A report of two GPUs: 100 GFLOP forward in 2 ms are 50 TFLOPS, 300 GFLOP in 6 ms too.
NEW = {
    "world size": "2",
    "data parallel size": "2",
    "model parallel size": "1",
    "batch size per GPU": "8",
    "params per GPU": "10 M",
    "params of model = params per GPU * mp_size": "10 M",
    "fwd MACs per GPU": "50 GMACs",
    "fwd flops per GPU": "100 G",
    "fwd flops of model = fwd flops per GPU * mp_size": "100 G",
    "fwd latency": "2 ms",
    "fwd FLOPS per GPU = fwd flops per GPU / fwd latency": "50 TFLOPS",
    "bwd latency": "4 ms",
    "bwd FLOPS per GPU = 2 * fwd flops per GPU / bwd latency": "50 TFLOPS",
    "fwd+bwd FLOPS per GPU = 3 * fwd flops per GPU / (fwd+bwd latency)": "50 TFLOPS",
    "step latency": "500 us",
    "iter latency": "6.5 ms",
    "FLOPS per GPU = 3 * fwd flops per GPU / iter latency": "46.15 TFLOPS",
    "samples/second": "2461.54",
}
OLDEST = {
    "Profile step": "10",
    "Number of parameters": "61.71 k",
    "Number of multiply-accumulate operations (MACs)": "439.56 M",
    "Number of floating point operations ( = 2 * MACs)": "879.12 M",
    "Latency": "25.7 ms",
    "Floating point operations per second(FLOPS)": "34.2 GFLOPS",
}


def report(values: Mapping[str, str] | None = None, step: int = 10) -> list[str]:
    notations = "number of parameters (params), number of multiply-accumulate operations(MACs),"
    pairs = [
        f"{label + ': ':<70}  {value:<8}"
        for label, value in (NEW if values is None else values).items()
    ]
    modules = [
        "depth 0:",
        "    params      - {'Net': '10 M'}",
        "    fwd latency - {'Net': '1.9 ms'}",
    ]
    head = ["", TITLE, f"Profile Summary at step {step}:", "Notations:", notations, ""]
    return [*head, *pairs, "", AGGREGATED, *modules]


def iteration(number: int, **fields: object) -> str:
    """An iteration line with these fields, `_` for a blank in their names."""
    told = {
        "consumed samples": 16 * number,
        **{name.replace("_", " "): value for name, value in fields.items()},
    }
    return (
        f" iteration {number:8d}/     100 | "
        + " | ".join(f"{name}: {value}" for name, value in told.items())
        + " |"
    )


def timed(number: int, ms: float, **fields: object) -> str:
    told = {
        "elapsed_time_per_iteration_(ms)": ms,
        "learning_rate": "1.2E-07",
        "global_batch_size": 16,
        **fields,
    }
    return iteration(number, **told)


def training() -> list[str]:
    """The log of three iterations of 16 samples with 1024 tokens each, on 4 GPUs."""
    rates = ((1000.0, 16.0, 100.0), (500.0, 32.0, 200.0), (250.0, 64.0, 400.0))
    lines = [
        timed(n, ms, actual_seqlen=1024, samples_per_second=samples, TFLOPs=tflops)
        for n, (ms, samples, tflops) in enumerate(rates, 1)
    ]
    return [
        "using world size: 4, data-parallel-size: 4",
        "training ...",
        *lines,
        "[after training is done]",
    ]
