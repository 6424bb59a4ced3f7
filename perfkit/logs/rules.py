"""Rules about logs of the GPUs: utilisation, memory, power, clock, links."""

from collections.abc import Mapping
from typing import Any

from perfkit.diagnosis.finding import Objection
from perfkit.diagnosis.rules.advice import FOR_IDLE_BESIDE
from perfkit.diagnosis.rules.rule import TIMELINE, Fact, Rule, later, now, soon

# What all rules about logs share.
OF_A_LOG: Mapping[str, Any] = {"needs": ("SAMPLES",), "notebook": TIMELINE}

LOG_UNUSED = Rule(
    name="log_unused",
    subject="unused",
    question="Is a GPU of the log not used at all?",
    **OF_A_LOG,
    evidence=("log_unused_frac", "log_used_busy_frac"),
    target="none",
    threshold=(
        "A GPU without a reading of 5 % utilisation or more beside one that works, whose memory no "
        "program holds (conventions)"
    ),
    advice=FOR_IDLE_BESIDE,
    next="List the processes of each GPU while the program runs: {gpu_processes}",
    objections=(Objection.FEW_READINGS,),
    kind="unused",
)

LOG_NO_WORK = Rule(
    name="log_no_work",
    subject="no work",
    question="Did the GPUs of the log do any work?",
    **OF_A_LOG,
    evidence=("log_no_work_frac", "log_highest_power_frac", "log_highest_memory_frac"),
    target="none",
    threshold=(
        "No GPU has a reading of 5 % utilisation or more (convention); without the utilisation, no "
        "SM of any is active, or no program holds 1 % of the memory and no GPU draws a quarter of "
        "its power limit"
    ),
    advice=(now("Log the GPUs while the program runs: {gpu_log}"),),
    next="List the processes of each GPU while the program runs: {gpu_processes}",
    objections=(Objection.FEW_READINGS,),
    kind="no_work",
    is_sign=True,
)

LOG_STOPPED = Rule(
    name="log_stopped",
    subject="ended",
    question="Does a GPU of the log stop working while others go on?",
    **OF_A_LOG,
    evidence=("log_stopped_frac",),
    target="none",
    threshold=(
        "No reading of 5 % utilisation or more in the last tenth of the log or longer, while at "
        "least as many other GPUs work (conventions)"
    ),
    advice=(
        now(
            "Look at the log and the process of this GPU at that time: did it fail, hang, or end "
            "its part of the work?"
        ),
        now("Look for Xid errors and retired pages: dmesg, and {gpu_state}", when=~Fact.AMD),
        soon(
            "If it ended its part, give the GPUs equal parts, or let it fetch work from the others"
        ),
    ),
    next="List the processes of each GPU while the program runs: {gpu_processes}",
    indirect="the log does not say whether the GPU had no work left or its process stood still",
    objections=(Objection.FEW_READINGS,),
    kind="stopped",
)

LOG_WAITED_FOR = Rule(
    name="log_waited_for",
    subject="waited for",
    question="Do GPUs wait at full utilisation for one that does nothing?",
    **OF_A_LOG,
    evidence=("log_little_power_frac", "log_waiting_power_frac"),
    target="none",
    threshold=(
        "Nine tenths utilisation with under 40 % of the power limit, for 10 % of the time, while "
        "another GPU is idle for half of the time (conventions)"
    ),
    advice=(
        now(
            "Find out what the CPU does in the process of the idle GPU: py-spy dump --pid PID, or "
            "gdb -p PID"
        ),
        now(
            (
                "Let the ranks write what they wait for (TORCH_NCCL_TRACE_BUFFER_SIZE=2000, "
                "TORCH_NCCL_DUMP_ON_TIMEOUT=1)"
            ),
            when=~Fact.MPI,
        ),
        soon(
            "Give all ranks the same CPU work, or do the work of one rank while the others compute"
        ),
    ),
    next="Record a timeline on every rank: {nsys}",
    indirect="the log shows power and utilisation, but not what the kernels do",
    objections=(Objection.FEW_READINGS,),
    kind="waited_for",
)

LOG_LITTLE_POWER = Rule(
    name="log_little_power",
    subject="little power",
    question="Do GPUs run kernels all the time and draw little power?",
    **OF_A_LOG,
    evidence=("log_little_power_frac", "log_waiting_power_frac"),
    target="none",
    threshold=(
        "Nine tenths utilisation with under 40 % of the power limit, for 10 % of the time "
        "(conventions)"
    ),
    advice=(
        now(
            "Find out whether kernels of collectives run: record a timeline of a few steps on "
            "every rank ({nsys})"
        ),
        now(
            "If they do, look for the rank or node that comes late; if not, the kernels use "
            "few SMs: give each launch more work"
        ),
    ),
    next="Record a timeline on every rank: {nsys}",
    indirect="the log shows power and utilisation, but not what the kernels do",
    objections=(Objection.FEW_READINGS,),
    kind="little_power",
    is_sign=True,
)

LOG_CAPPED = Rule(
    name="log_capped",
    subject="capped",
    question="Does something else than its own limit hold down the power of a GPU?",
    **OF_A_LOG,
    evidence=("log_capped_frac", "log_capped_power_frac", "log_capped_clock_frac"),
    target="none",
    threshold=(
        "The driver lowers the clock by power while the GPU draws under 80 % of its limit, for 10 "
        "% of the time (conventions)"
    ),
    advice=(
        now(
            "Check the power supplies and power cables of the node, and the power limits in the BMC"
        ),
        now(
            "Check which reason the driver gives ({gpu_state}), and reset a limit that somebody "
            "set ({power_limit})"
        ),
        now("If the cap follows the card to another slot, replace the card"),
        soon(
            "Leave this node out of jobs until it is repaired: GPUs of a job wait for the slowest"
        ),
    ),
    next="Compare the GPUs of the node: {gpu_state}",
    objections=(Objection.FEW_READINGS,),
    kind="capped",
)

LOG_UTILISATION = Rule(
    name="log_utilisation",
    subject="utilisation",
    question="Does a GPU in the log have a low utilisation?",
    **OF_A_LOG,
    evidence=("log_check_utilisation",),
    target="80 %",
    threshold=(
        "Less than 80 % utilisation for more than 10 % of the time (conventions; the checks of "
        "step 2)"
    ),
    advice=(
        now(
            "Record a few steps to see what the GPU waits for: {nsys}, or {torch}",
            when=~Fact.TIMELINE,
        ),
        soon(
            "Fix the largest cause in the recording, and compare this log with the next one "
            "(perfkit compare)"
        ),
        later("Monitor the utilisation of every job ({gpu_log})"),
    ),
    next="Record a timeline of a few steps: {nsys}",
    objections=(Objection.VIDEO_ENGINE, Objection.FEW_READINGS),
    kind="utilisation",
    is_sign=True,
)

LOG_MEMORY = Rule(
    name="log_memory",
    subject="memory",
    question="Is the memory of a GPU nearly full?",
    **OF_A_LOG,
    evidence=("log_check_memory",),
    target="95 %",
    threshold=(
        "From 95 % of the memory on, the next allocation may fail (convention; the checks of step "
        "2)"
    ),
    advice=(
        now("Watch for out-of-memory errors before you change anything"),
        now("Process less data at a time if such errors occur, such as a smaller batch"),
        soon(
            "If the program trains a model, use activation checkpointing (torch.utils.checkpoint) "
            "or 16-bit types"
        ),
        later("Divide the data that do not change over several GPUs, such as a model's parameters"),
    ),
    next="Record a timeline of a few steps: {nsys}",
    kind="memory",
)

LOG_POWER = Rule(
    name="log_power",
    subject="power",
    question="Does a GPU draw little power?",
    **OF_A_LOG,
    evidence=("log_check_power",),
    target="50 %",
    threshold=(
        "Under half of the power limit, a GPU computes little (convention; the checks of step 2)"
    ),
    advice=(
        now("Give the GPU more work at a time, such as a larger batch"),
        now(
            (
                "Find the CPU code that takes the time (step 3, call_paths), and move it out of "
                "the loop"
            ),
            when=Fact.CALL_PATHS,
        ),
        now("Record what the CPU does while the GPU has no work: {nsys}", when=~Fact.CALL_PATHS),
        soon(
            "Overlap the CPU's work with the GPU's: copy asynchronously (cudaMemcpyAsync), and "
            "queue several steps"
        ),
        later("Use a smaller GPU for this job, or share one between jobs (MIG)"),
        later("Monitor the utilisation of every job ({gpu_log})"),
    ),
    next="Record a timeline of a few steps: {nsys}",
    objections=(Objection.VIDEO_ENGINE, Objection.FEW_READINGS),
    kind="power",
    is_sign=True,
)

LOG_THROTTLING = Rule(
    name="log_throttling",
    subject="throttling",
    question="Did the driver lower a GPU's clock?",
    **OF_A_LOG,
    evidence=("log_check_throttling", "log_lowered_clock_frac"),
    target="none",
    threshold=(
        "The clock is lowered for 1 % of the time, or the GPU is within 5 degrees of its slowdown "
        "temperature (conventions; the checks of step 2). NVML gives the event reasons"
    ),
    advice=(
        now(
            (
                "Raise the power limit if the supply and the cooling allow it ({power_limit}): "
                "busy GPUs at their limit are normal, and only a higher limit makes them faster"
            ),
            when=Fact.AT_POWER_LIMIT,
        ),
        now(
            (
                "Check the reasons for the low clock ({gpu_state}), and the power limit "
                "({power_limit} sets it)"
            ),
            when=~Fact.AT_POWER_LIMIT & ~Fact.HEATED,
        ),
        now("Improve the cooling and the airflow: heat lowers the clock", when=Fact.HEATED),
        soon("Compare GPUs of one job by clock and temperature"),
        soon("Move the job away from a node that is always slower"),
        later("Plan cooling and power for the clock that your measurements assume"),
    ),
    next="Log clock, power and temperature for an hour: {gpu_log}",
    objections=(Objection.CLOCK_KEPT, Objection.FEW_READINGS),
    kind="throttling",
)
