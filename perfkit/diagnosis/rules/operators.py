"""Rules about the operators of a framework: their types, shapes, layouts and what they repeat."""

from perfkit.diagnosis.finding import Objection
from perfkit.diagnosis.rules.advice import ON_TENSOR_CORES, SHOW_COMPILE
from perfkit.diagnosis.rules.longest_moments import longest_gap, longest_kernel, longest_of
from perfkit.diagnosis.rules.rule import KERNELS, Fact, Rule, later, now, soon, worth_a_look

SHOW_ATTENTION = """\
model = AutoModel.from_pretrained(name, attn_implementation="sdpa")"""
SHOW_CHANNELS_LAST = """\
model = model.to(memory_format=torch.channels_last)
images = images.to("cuda", memory_format=torch.channels_last)"""
SHOW_AUTOCAST = """\
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = criterion(model(batch), target)
loss.backward()"""

COMPILATION = Rule(
    name="compilation",
    question="Does torch.compile compile in the steady steps?",
    needs=("KERNELS", "OPS"),
    evidence=("compilation_frac", "idle_frac"),
    target="0 %",
    threshold=worth_a_look("Compiling in steady steps"),
    advice=(
        now(
            "Mark the sizes that change: torch.compile(model, dynamic=True), or "
            "torch._dynamo.mark_dynamic"
        ),
        now(
            "Keep shapes and types equal: pad to a few lengths (buckets), and leave out an "
            "incomplete last batch (drop_last=True)"
        ),
        soon(
            "Keep Python numbers that change, such as a step count, out of the compiled "
            "function: each value compiles anew"
        ),
    ),
    next="Log why it compiles again: TORCH_LOGS=recompiles python PROGRAM",
    moment=longest_gap("host_code"),
    reason="torch.compile compiled the program again",
    objections=(Objection.WARM_UP,),
)

RECOMPUTATION = Rule(
    name="recomputation",
    question="Does activation checkpointing cost time although memory is free?",
    needs=("KERNELS", "OPS"),
    evidence=("recomputation_frac",),
    target="0 % where memory is free",
    threshold=(
        "Forward operators in the backward pass, where less than half of the memory is known to be "
        "allocated: 10 % of the time is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        now(
            "Leave out torch.utils.checkpoint if the GPU's memory holds the activations "
            "(model.gradient_checkpointing_disable())"
        ),
        now(
            "Otherwise recompute only what is cheap: "
            "torch.utils.checkpoint.create_selective_checkpoint_contexts"
        ),
        soon(
            "Shard parameters and optimizer states over the GPUs (torch.distributed.fsdp), so "
            "that activations fit into memory"
        ),
    ),
    next="Run one step without checkpointing, and print torch.cuda.max_memory_allocated()",
    moment=longest_kernel,
    indirect="the recording does not show whether the activations fit into the GPU's memory",
)

ATTENTION = Rule(
    name="attention",
    question="Does the program compute attention in separate kernels instead of one fused kernel?",
    needs=("KERNELS", "OPS"),
    evidence=("unfused_attention_frac",),
    target="one fused kernel",
    threshold=(
        "Kernel time of softmax and batched products: 10 % of the time is worth a look, 30 % is "
        "severe (conventions). In case 3 of the course's chapter it is 60 %"
    ),
    advice=(
        now(
            (
                "Call torch.nn.functional.scaled_dot_product_attention, or load with "
                "attn_implementation='sdpa'"
            ),
            code=SHOW_ATTENTION,
        ),
        soon(
            "Use shapes and types that the fused kernels support (16-bit types, supported head "
            "sizes)"
        ),
        later("Choose an attention method without a full matrix of scores for long sequences"),
    ),
    next="Measure the roofline of the attention kernels: {ncu}",
    moment=longest_kernel,
    notebook=KERNELS,
    shortens_kernels=True,
)

LAYOUT = Rule(
    name="layout",
    question="Do kernels take time that only move tensors inside the GPU's memory?",
    needs=("KERNELS", "OPS"),
    evidence=("moving_frac",),
    threshold=(
        "Copies, transposes and conversions of layouts by kernels of 10 µs or more, without casts: "
        "10 % of the time is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        now(
            (
                "Write into a tensor of full length that you allocate once (such as a static "
                "key-value cache) in place of torch.cat in each step"
            ),
            when=Fact.CONCATENATES,
        ),
        now(
            (
                "Give attention the heads of key and value as they are (enable_gqa=True of "
                "scaled_dot_product_attention), without repeat_interleave"
            ),
            when=Fact.REPEATS & Fact.FUSED_ATTENTION,
        ),
        now(
            (
                "Keep model and images in the format channels_last: "
                "model.to(memory_format=torch.channels_last), and the input too"
            ),
            when=Fact.CONVERSIONS,
            code=SHOW_CHANNELS_LAST,
        ),
        now(
            (
                "Leave out .contiguous() and .clone() before operators that read any strides, such "
                "as elementwise operators and matrix products"
            ),
            when=~Fact.CONVERSIONS,
        ),
        soon(
            "Compile the model: torch.compile fuses copies with their neighbours",
            when=~Fact.COMPILED,
            code=SHOW_COMPILE,
        ),
    ),
    next=(
        "List the operators that copy, with their shapes: step 5 (unexpected operators), or {torch}"
    ),
    moment=longest_of("copy"),
)

CASTS = Rule(
    name="casts",
    question="Does the program convert its weights to another type again and again?",
    needs=("KERNELS", "OPS"),
    evidence=("weight_cast_frac",),
    target="one cast in all, in training one per step",
    threshold=worth_a_look("Casts of weights by kernels of 10 µs or more"),
    advice=(
        now(
            (
                "Convert the weights once before the loop (model.to(torch.bfloat16)), and give the "
                "model inputs of this type"
            ),
            when=Fact.INFERENCE,
        ),
        now(
            "Run the whole forward pass in one torch.autocast region: it keeps converted "
            "weights that need gradients until the region ends"
        ),
        soon(
            "Keep the weights in bfloat16, and their float32 copy in the optimizer",
            when=~Fact.INFERENCE,
        ),
    ),
    next=(
        "List the operators that convert tensors (aten::to, aten::_to_copy), with their shapes: "
        "step 5, or {torch}"
    ),
    moment=longest_of("copy"),
    shortens_kernels=True,
)

ATTENTION_MASK = Rule(
    name="attention_mask",
    question="Does attention read a mask that is larger than its query, key and value?",
    needs=("KERNELS", "OPS"),
    evidence=("masked_attention_frac",),
    target="0 %",
    threshold=(
        "The mask has more bytes than query, key and value together. Attention with such a mask: "
        "10 % of the kernel time is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        now(
            "Leave out the mask and set is_causal=True in scaled_dot_product_attention, if the "
            "mask only hides later positions"
        ),
        now(
            "Give a mask of the shape [1, 1, T, S] if batch and heads share it: PyTorch "
            "expands it without a copy"
        ),
        soon("Compute the mask inside the kernel (torch.nn.attention.flex_attention)"),
    ),
    next="Run the same steps with a smaller mask or without one, and compare the two runs",
    moment=longest_of("attention", "gemm"),
    indirect="the recording does not show whether the mask can be left out",
    notebook=KERNELS,
    shortens_kernels=True,
)

UNALIGNED_PRODUCTS = Rule(
    name="unaligned_products",
    question="Do 16-bit matrix products have rows of a length that tensor cores cannot read well?",
    needs=("KERNELS", "OPS"),
    evidence=("unaligned_frac", "unaligned_flops_per_s", "aligned_flops_per_s"),
    target="multiples of 8, or better of 64",
    threshold=(
        "Rows of an operand or of the result that are no multiple of 8 elements, in products of 10 "
        "µs or more. Saving 10 % of the time is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        now(
            "Give torch.nn.Embedding and torch.nn.Linear the padded size, and leave out the "
            "padded scores (logits[..., :n])"
        ),
        soon(
            "Pad both layers where they share their weights, and choose multiples of 64 for "
            "all sizes of the model"
        ),
    ),
    next="Pad the dimension, run the same steps, and compare the two runs",
    moment=longest_of("gemm"),
    shortens_kernels=True,
)

FUSION = Rule(
    name="fusion",
    question="Do elementwise kernels follow each other that one kernel could replace?",
    needs=("KERNELS", "OPS"),
    evidence=("chained_frac",),
    target="one kernel a chain",
    shortens_kernels=True,
    threshold=(
        "One kernel for each chain of kernels of 10 µs or more saves at least 20 % of the time; 30 "
        "% is severe (conventions)"
    ),
    advice=(
        now(
            "Give torch.nn.functional.cross_entropy the class numbers: it needs no one_hot target",
            when=Fact.ONE_HOT,
        ),
        now(
            "Compile the model, or the function with these operators, with torch.compile",
            code=SHOW_COMPILE,
        ),
        soon(
            "Call PyTorch's own fused operator where there is one (torch.nn.functional.gelu, "
            "layer_norm, scaled_dot_product_attention)"
        ),
        soon(
            "Keep their tensors in 16 bits (torch.bfloat16): they read and write half of the bytes",
            when=~Fact.REDUCED,
        ),
    ),
    next="Run the same steps under torch.compile, and compare the two runs",
    moment=longest_of("elementwise", "copy", "normalisation", "softmax", "reduction"),
)

PRECISION = Rule(
    name="precision",
    question="Does matrix work use 16 or 8 bits?",
    needs=("KERNELS", "OPS"),
    evidence=("reduced_precision_frac",),
    target="above 50 %",
    threshold=(
        "Less than half of the matrix work uses 16 or 8 bits, and matrix work takes at least 10 % "
        "of the kernel time (conventions)"
    ),
    advice=(
        now(
            (
                "Convert model and inputs to float32 (x.float()): NumPy makes float64 arrays, "
                "which torch.autocast leaves as they are"
            ),
            when=Fact.PYTORCH & Fact.FLOAT64,
        ),
        now(
            "Then allow TF32 in matrix products (torch.set_float32_matmul_precision('high'))",
            when=Fact.PYTORCH & Fact.FLOAT64 & ~Fact.BEFORE_AMPERE,
        ),
        now(
            "Run the forward pass under torch.autocast with bfloat16",
            when=Fact.PYTORCH & ~Fact.FLOAT64 & ~Fact.BEFORE_AMPERE,
            code=SHOW_AUTOCAST,
        ),
        now(
            (
                "Run the forward pass under torch.autocast with float16, in training with "
                "torch.amp.GradScaler: this GPU has no tensor cores for bfloat16"
            ),
            when=Fact.PYTORCH & Fact.VOLTA & ~Fact.FLOAT64,
        ),
        *ON_TENSOR_CORES,
        soon("Compare the loss with the loss in float32"),
        later("Train in 8 bits if hardware and accuracy allow it", when=~Fact.BEFORE_ADA),
    ),
    next="Measure the tensor-pipe activity of each kernel: {ncu}",
    objections=(Objection.PIPE_WORKS,),
    moment=longest_kernel,
    notebook=KERNELS,
    shortens_kernels=True,
)

MEMORY_GROWTH = Rule(
    name="memory_growth",
    question="Does each step keep more of the GPU's memory?",
    needs=("OPS", "SAMPLES"),
    evidence=("memory_growth_bytes",),
    target="0 B",
    threshold=(
        "In nine of ten steady steps the least allocated memory is more than in the step before, "
        "and it grows by 1 % of the peak in all (conventions)"
    ),
    advice=(
        now(
            "Look for tensors that a list, a metric or a closure keeps: add loss.item() or "
            "loss.detach(), not loss"
        ),
        now("If a key-value cache grows, allocate it for the longest sequence before the loop"),
        soon(
            "Test that the memory after step 10 and after step 100 is the same "
            "(torch.cuda.memory_allocated)"
        ),
    ),
    next=(
        "Find where it is allocated: torch.cuda.memory._record_memory_history(), then "
        "_dump_snapshot(FILE)"
    ),
)
