"""Rules about GPUs that work together: communication, and GPUs that are slow, late or unused."""

from perfkit.diagnosis.finding import Objection
from perfkit.diagnosis.rules.advice import BALANCED_EXCHANGE, FOR_IDLE_BESIDE
from perfkit.diagnosis.rules.changes import OVERLAPPED_COMMUNICATION
from perfkit.diagnosis.rules.longest_moments import longest_collective, longest_kernel
from perfkit.diagnosis.rules.rule import LINKS, TIMELINE, Fact, Rule, later, now, soon

SHOW_BUCKETS = """\
model = DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True)"""

EXPOSED_COMMUNICATION = Rule(
    name="exposed_communication",
    question="Does the GPU communicate while no compute kernel runs (exposed communication)?",
    needs=("KERNELS",),
    evidence=("exposed_communication_frac", "overlap_frac", "bus_bytes_per_s"),
    target="under 20 %",
    threshold=(
        "The guide's target is under 20 to 30 % of a step. Exposed communication: 10 % of the time "
        "is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        now(
            "Check that gradient buckets start while the backward pass runs (bucket_cap_mb of DDP)",
            when=Fact.REDUCES & Fact.BACKWARD,
            code=SHOW_BUCKETS,
        ),
        now(
            (
                "Shorten a small AllReduce: use a one-shot all-reduce (custom all-reduce of vLLM "
                "and TensorRT-LLM), and launch the step as a CUDA graph"
            ),
            when=Fact.REDUCES & ~Fact.BACKWARD,
        ),
        now(
            (
                "Prefetch the parameters of the next layer while this one computes "
                "(forward_prefetch and backward_prefetch of FSDP, stage3_prefetch_bucket_size of "
                "DeepSpeed)"
            ),
            when=Fact.GATHERS,
        ),
        BALANCED_EXCHANGE,
        now(
            "Start each exchange as soon as its data are ready, on a stream of its own, and "
            "compute meanwhile"
        ),
        soon(
            "Exchange gradients in bfloat16 instead of float32",
            when=Fact.REDUCES & Fact.BACKWARD & ~Fact.REDUCED,
        ),
        soon("Accumulate gradients over several micro-batches", when=Fact.REDUCES & Fact.BACKWARD),
        soon(
            "Compress the gradients (powerSGD_hook of DDP), and check that the loss still falls",
            when=Fact.PYTORCH & Fact.REDUCES & Fact.BACKWARD,
        ),
        soon(
            (
                "Keep parameters on each GPU between the forward and the backward pass "
                "(reshard_after_forward=False of FSDP), if memory allows it"
            ),
            when=Fact.GATHERS & Fact.BACKWARD,
        ),
        soon(
            "Split the batch in two halves, so that one computes while the other is exchanged",
            when=Fact.ALL_TO_ALL,
        ),
        later("Choose the parallel layout so that large exchanges stay inside a node"),
        later(
            (
                "Split the model into pipeline stages, which exchange activations only, instead of "
                "more data-parallel ranks"
            ),
            when=Fact.REDUCES & Fact.BACKWARD,
        ),
    ),
    next="Run nccl-tests on the same nodes to measure the bandwidth that the links reach (step 1)",
    change=OVERLAPPED_COMMUNICATION,
    moment=longest_collective,
    notebook=LINKS,
)

SLOW_GPU = Rule(
    name="slow_gpu",
    subject="slow GPU",
    question="Is one GPU slower than the others?",
    needs=("KERNELS",),
    evidence=("slow_gpu_ratio", "slow_gpu_lost_frac"),
    target="1 on every GPU",
    threshold=(
        "The same kernels run 10 % longer on one GPU and fill at least half of its computing time. "
        "Losing 10 % of the time to it is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        now("Compare the GPUs' clocks, temperature and links ({gpu_log}, {gpu_links})"),
        now(
            "Run the same kernel on each GPU alone: if one GPU stays slower, remove it from "
            "the job ({gpu_state})"
        ),
        soon("Give each GPU the same amount of work, or an amount in proportion to its speed"),
    ),
    next="Record clocks, power and temperature of each GPU while the program runs: {gpu_log}",
    moment=longest_kernel,
    objections=(Objection.UNLIKE,),
    shortens_kernels=True,
)

LATE_GPU = Rule(
    name="late_gpu",
    subject="late GPU",
    question="Does one GPU arrive late at the collectives?",
    needs=("KERNELS",),
    evidence=("late_gpu_frac", "late_gpu_idle_frac"),
    threshold=(
        "Difference in exposed communication between the GPU with the most and the GPU with the "
        "least: 10 % of the time is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        now(
            "Compare the CPU work for this GPU and for the others before each step: loading, "
            "logging, saving"
        ),
        now(
            "Bind each process to cores near its GPU (numactl --cpunodebind, or --cpu-bind of srun)"
        ),
        now(
            "Load data in worker processes on every rank (num_workers of the DataLoader)",
            when=Fact.PYTORCH & Fact.DATALOADER,
        ),
        soon(
            "Move work of one rank, such as logging and evaluation, to another thread, or do "
            "it in fewer steps"
        ),
    ),
    next="Record all ranks to see what the CPU does for the late GPU before each step: {nsys}",
    objections=(Objection.BEGUN_APART,),
    moment=longest_collective,
    notebook=LINKS,
)

GPU_UNUSED = Rule(
    name="gpu_unused",
    subject="GPU unused",
    question="Does a GPU do nothing while another one works?",
    needs=("KERNELS",),
    evidence=("unused_gpu_idle_frac", "busiest_gpu_frac"),
    threshold=(
        "A GPU works for under 10 % of the time of the busiest GPU, which works at least half of "
        "the time. Losing 10 % of all GPUs' time is worth a look, 30 % is severe (conventions)"
    ),
    advice=FOR_IDLE_BESIDE,
    next="Record which GPU each process sets and uses: {nsys}, and {gpu_processes}",
    notebook=TIMELINE,
)

GPU_NEVER_USED = Rule(
    name="gpu_never_used",
    subject="GPU never used",
    question="Does the machine have GPUs that the program never uses?",
    needs=("KERNELS", "DEVICES"),
    evidence=("never_used_frac",),
    target="none",
    threshold=(
        "One GPU in the recording's list on which nothing ran, in a program whose GPUs do not "
        "communicate (convention)"
    ),
    advice=FOR_IDLE_BESIDE,
    next="List the processes of each GPU while the program runs: {gpu_processes}",
    indirect="the list says which GPUs the machine has, not which ones the job was given",
    objections=(Objection.ONE_PROGRAM,),
)

RANKS = Rule(
    name="ranks",
    question="Do ranks or GPUs wait for the one with the most work?",
    needs=("KERNELS",),
    evidence=("rank_imbalance_frac", "gpu_imbalance_frac"),
    threshold=(
        "The slowest rank or GPU takes 10 % longer than the average. Time for which others wait "
        "for it: 10 % is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        now(
            "Compare the input of the slowest rank with the others: batch, sequence lengths, "
            "share of the model",
            when=Fact.PYTORCH,
        ),
        now(
            "Compare how much of the data each GPU computes, and divide it evenly",
            when=~Fact.PYTORCH,
        ),
        now("Compare the clocks of the GPUs ({gpu_log})"),
        soon(
            "Bucket sequences by length (a batch_sampler over sorted lengths), or split "
            "pipeline stages by measured time",
            when=Fact.PYTORCH,
        ),
        later("Choose a parallel layout with parts of equal duration"),
    ),
    next=("Compare shapes and clocks per rank: log each GPU ({gpu_log}) during the recording"),
    moment=longest_collective,
    notebook=LINKS,
)

LATE_IN_TURN = Rule(
    name="late_in_turn",
    question="Is another GPU late in each collective?",
    needs=("KERNELS",),
    evidence=("in_turn_frac", "in_turn_most_frac"),
    threshold=(
        "Waiting in ten collectives or more, of which no GPU causes more than 60 %: 10 % of the "
        "time is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        BALANCED_EXCHANGE,
        now(
            (
                "Between the stages of a pipeline, run more micro-batches or an interleaved "
                "schedule (1F1B), and balance the stages by their measured time; between experts, "
                "balance their load (capacity factor, auxiliary loss)"
            ),
            when=Fact.SENDS,
        ),
        now(
            "Give each rank the same work before each collective: bucket by length (a "
            "batch_sampler over sorted lengths), sort, or cut large items"
        ),
        soon(
            "Let a rank with less work do something else before the collective, such as "
            "preparing the next step"
        ),
    ),
    next=(
        "Record for each rank how much work it has in each step (tokens, sequence lengths, "
        "elements), and compare: {nsys}"
    ),
    moment=longest_collective,
)

RECEIVE_WAIT = Rule(
    name="receive_wait",
    subject="waiting for sends",
    question="Do the stages of a pipeline wait for each other?",
    needs=("KERNELS",),
    evidence=("receive_wait_frac",),
    threshold=(
        "Waiting in sends and receives: 10 % of the time is worth a look, 30 % is severe "
        "(conventions). A pipeline of p stages waits for (p - 1) / (m + p - 1) of a step of m "
        "micro-batches"
    ),
    advice=(
        now("Run more micro-batches in each step, so that each stage has one at all times"),
        now("Measure how long each stage computes, and move layers from the longest to the others"),
        soon(
            "Use an interleaved schedule, in which each GPU holds several short stages "
            "(ScheduleInterleaved1F1B of torch.distributed.pipelining, "
            "--num-layers-per-virtual-pipeline-stage of Megatron)"
        ),
        soon("Compute the gradients of the weights while a stage waits (zero-bubble schedules)"),
    ),
    next="Record all stages, and name the micro-batches with NVTX ranges: {nsys}",
    moment=longest_collective,
    notebook=TIMELINE,
)
