"""Rules about the kernels of a timeline: what they compute, and how much of the GPU they use."""

import re

from perfkit.diagnosis.finding import Objection
from perfkit.diagnosis.rules.advice import FOR_COMPUTATION, FOR_MEMORY_BOUND, ON_TENSOR_CORES
from perfkit.diagnosis.rules.longest_moments import longest_kernel, longest_of
from perfkit.diagnosis.rules.rule import KERNELS, Fact, Rule, SlowPath, later, now, soon

# Kernels that take a slow path, by their names: what it is, and what to do.
SLOW_PATHS = {
    "bluestein": SlowPath(
        re.compile(r"bluestein"),
        "FFTs of a length with a large prime factor (Bluestein's algorithm)",
        (
            "Pad the FFT to a length with small prime factors, such as a power of two "
            "(the argument n of torch.fft.rfft)"
        ),
    ),
    "index_gradient": SlowPath(
        re.compile(r"indexing_backward_kernel"),
        (
            "index_put_ with accumulate=True, which adds up rows with the same index one after another"
        ),
        (
            "Leave out torch.use_deterministic_algorithms(True), or replace an "
            "index by index_select or gather, whose gradients are faster"
        ),
    ),
    "index_add": SlowPath(
        re.compile(r"indexFunc(?:Large|Small)Index"),
        ("index_add_, where many rows for the same place wait for each other (atomic additions)"),
        (
            "Sort the rows by their index and sum each segment "
            "(torch.segment_reduce), where many rows have the same index"
        ),
    ),
    "sparse": SlowPath(
        re.compile(r"csrmm|csrmv"),
        "products with a sparse matrix in the format CSR (cuSPARSE)",
        (
            "Multiply with a dense matrix (to_dense) unless about 95 % of the "
            "values are zero, or prune to the 2:4 pattern "
            "(to_sparse_semi_structured)"
        ),
    ),
}


FEW_BLOCKS = Rule(
    name="few_blocks",
    question="Do kernels have fewer blocks than the GPU has SMs?",
    needs=("KERNELS", "DEVICES"),
    evidence=("few_blocks_frac", "few_blocks_sm_frac"),
    target="at least one block for each SM",
    threshold=(
        "Such kernels run for 30 % of the time. Losing 10 % of the time to them is worth a look, "
        "30 % is severe (conventions)"
    ),
    advice=(
        now(
            (
                "Launch at least as many blocks as SMs: give each block less work, with a "
                "grid-stride loop over gridDim.x"
            ),
            when=~Fact.FEW_BLOCKS_OF_LIBRARY,
        ),
        now(
            (
                "Give the library more work per call: use a larger batch, or batched calls such as "
                "torch.bmm"
            ),
            when=Fact.FEW_BLOCKS_OF_LIBRARY & Fact.PYTORCH,
        ),
        now(
            (
                "Give the library more work per call: use a larger batch, or batched calls such as "
                "cublasGemmStridedBatchedEx"
            ),
            when=Fact.FEW_BLOCKS_OF_LIBRARY & ~Fact.PYTORCH,
        ),
        now(
            "Run independent kernels at the same time on several streams "
            "(cudaStreamCreateWithFlags)"
        ),
        soon(
            "Split long sums and scans over blocks (split-k, cub::DeviceReduce, cub::DeviceScan)",
            when=~Fact.FEW_BLOCKS_OF_LIBRARY,
        ),
    ),
    next="Measure whether each working SM is full: {ncu}",
    moment=longest_kernel,
    notebook=KERNELS,
    shortens_kernels=True,
)

SLOWED_KERNELS = Rule(
    name="slowed_kernels",
    question="Are kernels slower while collectives run beside them?",
    needs=("KERNELS",),
    evidence=("slowed_kernels_frac", "slowed_kernel_ratio"),
    target="under 5 %",
    threshold=(
        "The same kernels (name, grid; five or more of each) take 10 % longer while a collective "
        "runs beside them, and this costs 5 % of the time (conventions)"
    ),
    advice=(
        now(
            "Give collectives fewer SMs (NCCL_MAX_CTAS, or NCCL_MAX_NCHANNELS of older "
            "versions), and compare"
        ),
        now("Send fewer bytes at that time: gradients in 16 bits, or larger and fewer collectives"),
        soon(
            "Run collectives beside kernels that use the memory little, such as large matrix "
            "products"
        ),
        soon(
            "Let copy engines or the network compute collectives, where the library can "
            "(NVLink SHARP, symmetric memory)"
        ),
    ),
    next="Record the same steps with fewer SMs for NCCL, and compare: {nsys}",
    moment=longest_kernel,
    indirect="kernels of one name may work on other data at that time",
)

ELEMENTWISE_BANDWIDTH = Rule(
    name="elementwise_bandwidth",
    question="Do elementwise operators use the bandwidth of the memory?",
    needs=("OPS", "KERNELS", "DEVICES"),
    evidence=("elementwise_dram_frac", "elementwise_bytes_per_s"),
    target="above 60 %",
    threshold=(
        "Elementwise operators of 10 µs or more take 30 % of the kernel time and move under 60 % "
        "of the bytes that the data sheet allows (conventions)"
    ),
    advice=(
        now(
            "Give these operators contiguous tensors of one layout and one type: else kernels "
            "load one value at a time"
        ),
        now(
            (
                "Compile chains of elementwise operators into one kernel (torch.compile), which "
                "chooses block and vector sizes for this GPU"
            ),
            when=Fact.PYTORCH & ~Fact.COMPILED,
        ),
        soon("Update the framework: its kernels for this GPU may have become faster"),
    ),
    next="Measure these kernels: {ncu}",
    moment=longest_of("elementwise"),
    indirect="the bytes follow from the shapes of the operators, and were not counted",
)

FEW_TILES = Rule(
    name="few_tiles",
    question="Do matrix products have enough tiles to fill the GPU?",
    needs=("OPS", "KERNELS"),
    evidence=("tiles_count", "tiles_flops_per_s"),
    target="as many tiles as SMs",
    threshold=(
        "Products of one shape take 30 % of the kernel time, and their output has fewer tiles than "
        "half of the SMs, or than 16 where the number of SMs is unknown (conventions)"
    ),
    advice=(
        now(
            "Let several blocks share the inner dimension (split-K, stream-K): choose such an "
            "algorithm by the library's tuning (hipBLASLt, rocBLAS, "
            "cublasLtMatmulAlgoGetHeuristic)"
        ),
        now(
            (
                "Try PyTorch's tuning of products (PYTORCH_TUNABLEOP_ENABLED=1, or "
                "torch.compile(mode='max-autotune'))"
            ),
            when=Fact.PYTORCH,
        ),
        soon("Compute several of these products in one call (batched or grouped GEMM)"),
    ),
    next="Measure these kernels: {ncu}",
    moment=longest_of("gemm"),
    indirect="the tile follows from the kernel's name",
)

COMPUTATION = Rule(
    name="computation",
    question="Is the GPU busy computing?",
    needs=("KERNELS",),
    evidence=("computation_frac",),
    target="near 100 %",
    threshold=(
        "perfkit reports computation for 60 % of the time or more (convention), with low severity"
    ),
    advice=FOR_COMPUTATION,
    next="Measure how well the kernels use the GPU: {ncu}",
    moment=longest_kernel,
    notebook=KERNELS,
    is_remainder=True,
    direct_with=("roof_share_frac",),
)

TOO_LITTLE = Rule(
    name="too_little",
    question="Was enough work of the GPU recorded to judge the program?",
    needs=("KERNELS",),
    evidence=("start_up_busy_frac", "start_up_kernel_count"),
    target="a hundred repetitions",
    threshold=(
        "Kernels run less than twice on average, nothing repeats, and the GPUs work for under 1 ms "
        "and 1 % of the time (conventions)"
    ),
    advice=(
        now(
            "Record steady steps: let the program run until its steps take the same time, then "
            "record a few of them (cudaProfilerStart, cudaProfilerStop)"
        ),
        soon(
            "Leave start-up out of the recording: load, compile and run a few steps of warm-up "
            "before it begins"
        ),
    ),
    next=(
        "Record steady steps: call cudaProfilerStart after the first steps, and pass "
        "--capture-range=cudaProfilerApi to nsys"
    ),
)

TENSOR_CORES = Rule(
    name="tensor_cores",
    question="Does matrix work run without tensor cores?",
    needs=("KERNELS",),
    evidence=("no_tensor_core_frac", "sample_tensor_active_frac", "reduced_precision_frac"),
    target="under 15 %",
    threshold=(
        "The guide's target is above 85 % for matrix kernels. Matrix work without tensor cores: 10 "
        "% of the time is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        now("Run under torch.autocast", when=Fact.PYTORCH),
        *ON_TENSOR_CORES,
        soon("Use the channels_last memory format for convolutions"),
        later("Use libraries with matrix kernels for tensor cores"),
    ),
    next="Measure the tensor-pipe activity of each kernel: {ncu}",
    objections=(Objection.PIPE_WORKS,),
    moment=longest_kernel,
    notebook=KERNELS,
    shortens_kernels=True,
)

MEMORY_BANDWIDTH = Rule(
    name="memory_bandwidth",
    question="Does the bandwidth of the GPU memory limit the kernels?",
    needs=("KERNELS", "SAMPLES"),
    evidence=("dram_used_frac", "kernel_busy_frac"),
    target="fewer bytes",
    threshold=(
        "From 60 % of the peak bandwidth on, Nsight Compute calls a kernel memory bound "
        "(SOLBottleneck). The guide calls 80 % well used"
    ),
    advice=FOR_MEMORY_BOUND,
    next="Measure which kernels move the bytes, and how well they coalesce their accesses: {ncu}",
    moment=longest_kernel,
    notebook=KERNELS,
    shortens_kernels=True,
)
