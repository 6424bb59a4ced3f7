"""Steps of advice, and the code that shows them, that rules of several themes give."""

from perfkit.diagnosis.rules.rule import IMMEDIATE, LONG_TERM, MEDIUM_TERM, Fact, Step

SHOW_DATA_LOADER = """\
loader = DataLoader(dataset, batch_size=64, num_workers=8, pin_memory=True, persistent_workers=True, prefetch_factor=4)
for batch in loader:
    batch = batch.to("cuda", non_blocking=True)"""
SHOW_DOUBLE_BUFFER = """\
cudaMemcpyAsync(next, host, bytes, cudaMemcpyHostToDevice, copies);
step<<<grid, block, 0, compute>>>(current);
cudaEventRecord(ready, copies);
cudaStreamWaitEvent(compute, ready);"""
SHOW_LATE_LOG = """\
total += loss.detach()  # stays on the GPU
if step % 100 == 0:
    print(total.item() / 100)
    total.zero_()"""
SHOW_GRAPH = """\
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):  # after three steps of warm-up on a side stream
    output = model(static_input)
static_input.copy_(batch)
graph.replay()"""
SHOW_FUSED = """\
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
output = torch.nn.functional.scaled_dot_product_attention(query, key, value)"""
SHOW_COMPILE = """\
model = torch.compile(model, mode="reduce-overhead")"""
FOR_DATA_LOADING = (
    Step(
        IMMEDIATE,
        ("Raise num_workers of the DataLoader to the number of CPU cores per GPU"),
        only=(Fact.PYTORCH, Fact.DATALOADER),
        code=SHOW_DATA_LOADER,
    ),
    Step(
        IMMEDIATE,
        ("Set pin_memory=True in the DataLoader and copy with non_blocking=True"),
        only=(Fact.PYTORCH, Fact.DATALOADER),
        unless=(Fact.PINNED,),
    ),
    Step(
        IMMEDIATE,
        ("Set persistent_workers=True and prefetch_factor=4 in the DataLoader"),
        only=(Fact.PYTORCH, Fact.DATALOADER),
    ),
    Step(
        IMMEDIATE,
        (
            "Load the data in worker processes, such as those of "
            "torch.utils.data.DataLoader (num_workers, pin_memory=True)"
        ),
        only=(Fact.PYTORCH,),
        unless=(Fact.DATALOADER,),
    ),
    Step(
        IMMEDIATE,
        ("Read the next batch on another thread while the GPU computes (cudaMemcpyAsync)"),
        unless=(Fact.PYTORCH,),
        code=SHOW_DOUBLE_BUFFER,
    ),
    Step(MEDIUM_TERM, "Decode, tokenise or resize the data once and store it ready to use"),
    Step(MEDIUM_TERM, "Keep the data on local NVMe storage"),
    Step(LONG_TERM, "Move preprocessing to the GPU, or to a separate service"),
    Step(LONG_TERM, "Store the data in a format for large sequential reads"),
)

FOR_SYNC = (
    Step(
        IMMEDIATE,
        "Remove .item(), .cpu() and print of GPU values from the step",
        only=(Fact.PYTORCH,),
        code=SHOW_LATE_LOG,
    ),
    Step(IMMEDIATE, "Log only every hundredth step of the loop", only=(Fact.PYTORCH,)),
    Step(
        IMMEDIATE,
        ("Remove waits for the GPU from the loop (cudaDeviceSynchronize, cudaStreamSynchronize)"),
        unless=(Fact.PYTORCH,),
    ),
    Step(
        IMMEDIATE,
        ("Wait for an event (cudaEventSynchronize) only where the CPU needs the result"),
        unless=(Fact.PYTORCH,),
    ),
    Step(
        IMMEDIATE,
        ("Use pinned memory and asynchronous copies (cudaMemcpyAsync, non_blocking=True)"),
        unless=(Fact.PINNED,),
    ),
    Step(
        MEDIUM_TERM,
        ("Replace waits for the whole GPU by events between streams (cudaStreamWaitEvent)"),
    ),
    Step(
        LONG_TERM,
        ("Let the CPU run several steps ahead: make no CPU decision depend on the running step"),
    ),
)

FOR_LAUNCH = (
    Step(
        IMMEDIATE,
        (
            "Leave out torch.autograd.set_detect_anomaly(True): it checks each "
            "gradient for NaN, and waits for the GPU each time"
        ),
        only=(Fact.ANOMALY,),
    ),
    Step(
        IMMEDIATE,
        ("Use a fused optimizer: one kernel in place of several for each parameter (fused=True)"),
        only=(Fact.OPTIMIZER_LOOP,),
        unless=(Fact.FUSED_OPTIMIZER,),
        code=SHOW_FUSED,
    ),
    Step(
        IMMEDIATE,
        ("Remove .item(), .cpu() and copies of pageable memory from inside the step: a graph cannot contain them"),
        only=(Fact.UNCAPTURABLE,),
        code=SHOW_LATE_LOG,
    ),
    Step(
        IMMEDIATE,
        ("Give each launch more work: raise batch_size, or run one kernel over all rows instead of one per row"),
        only=(Fact.PYTORCH,),
    ),
    Step(
        IMMEDIATE,
        ("Give each launch more work: run one kernel over all rows instead of one per row"),
        unless=(Fact.PYTORCH,),
    ),
    Step(
        IMMEDIATE,
        "Compile the step with torch.compile(mode='reduce-overhead')",
        only=(Fact.PYTORCH,),
        unless=(Fact.GRAPHS,),
        code=SHOW_COMPILE,
    ),
    Step(
        MEDIUM_TERM,
        ("Capture the step in a CUDA graph (cudaStreamBeginCapture, torch.cuda.graph)"),
        unless=(Fact.GRAPHS,),
        code=SHOW_GRAPH,
    ),
    Step(
        MEDIUM_TERM,
        "Use the fused form of the optimizer (fused=True)",
        only=(Fact.OPTIMIZER,),
        unless=(Fact.OPTIMIZER_LOOP, Fact.FUSED_OPTIMIZER),
        code=SHOW_FUSED,
    ),
    Step(
        MEDIUM_TERM,
        ("Use fused attention (torch.nn.functional.scaled_dot_product_attention)"),
        only=(Fact.UNFUSED_ATTENTION,),
        code=SHOW_FUSED,
    ),
    Step(LONG_TERM, "Fuse chains of small kernels into one kernel"),
)

FOR_MPI = (
    Step(
        IMMEDIATE,
        ("Record more work between MPI_Init and MPI_Finalize, and leave start-up and shut-down out of the measurement"),
        only=(Fact.MPI_SET_UP,),
    ),
    Step(
        IMMEDIATE,
        ("Compare the ranks (a timeline or call paths of each): a rank with less work waits in this call"),
        unless=(Fact.MPI_SET_UP,),
    ),
    Step(
        IMMEDIATE,
        ("Bind each rank to cores near the network adapter (--cpu-bind of srun, --map-by of mpirun)"),
        unless=(Fact.MPI_SET_UP,),
    ),
    Step(
        MEDIUM_TERM,
        ("Start the exchange early and compute before MPI_Wait (MPI_Isend, MPI_Irecv, MPI_Iallreduce)"),
        unless=(Fact.MPI_SET_UP, Fact.MPI_WAITS),
    ),
    Step(
        MEDIUM_TERM,
        ("Move more computation between the start of the exchange and MPI_Wait"),
        only=(Fact.MPI_WAITS,),
    ),
    Step(
        MEDIUM_TERM,
        "Merge small messages, and call collectives less often",
        unless=(Fact.MPI_SET_UP,),
    ),
)

FOR_COPIES = (
    Step(
        IMMEDIATE,
        ("Allocate pinned CPU memory (pin_memory=True), and copy with non_blocking=True"),
        only=(Fact.PYTORCH,),
        unless=(Fact.PINNED,),
    ),
    Step(
        IMMEDIATE,
        ("Keep data on the GPU between the loops: put them in a data region (acc data copyin, copyout)"),
        only=(Fact.OPENACC,),
    ),
    Step(
        IMMEDIATE,
        ("Keep data on the GPU between the loops: put them in a data region (omp target data map)"),
        only=(Fact.OPENMP,),
    ),
    Step(
        IMMEDIATE,
        "Allocate pinned CPU memory (cudaHostAlloc)",
        unless=(Fact.PINNED, Fact.PYTORCH, Fact.OPENACC, Fact.OPENMP),
    ),
    Step(
        IMMEDIATE,
        ("Copy on a separate stream with cudaMemcpyAsync (non_blocking=True in PyTorch)"),
        only=(Fact.PYTORCH,),
    ),
    Step(
        IMMEDIATE,
        "Copy on a separate stream with cudaMemcpyAsync",
        unless=(Fact.PYTORCH, Fact.OPENACC, Fact.OPENMP),
    ),
    Step(IMMEDIATE, "Merge small copies into one large copy", only=(Fact.SMALL_COPIES,)),
    Step(MEDIUM_TERM, "Copy the next part while the GPU computes this one", unless=(Fact.TO_CPU,)),
    Step(
        MEDIUM_TERM,
        "Copy the results of one step while the GPU computes the next step",
        only=(Fact.TO_CPU,),
    ),
    Step(LONG_TERM, "Keep reused data on the GPU"),
)

FOR_COMPUTATION = (
    Step(
        IMMEDIATE,
        ("Call torch.topk in place of a sort where only the largest values are needed"),
        only=(Fact.SORTS,),
    ),
    Step(
        IMMEDIATE,
        (
            "Let the embedding have sparse gradients (sparse=True, "
            "torch.optim.SparseAdam): a dense gradient is as large as the "
            "table, and the optimizer updates all of it"
        ),
        only=(Fact.EMBEDDING_GRADIENT,),
    ),
    Step(IMMEDIATE, "Measure the longest kernels: {ncu}", unless=(Fact.COUNTERS,)),
    Step(
        IMMEDIATE,
        ("Remove what limits the longest kernel first (call_roofline names it)"),
        only=(Fact.COUNTERS,),
    ),
    Step(
        MEDIUM_TERM,
        (
            "Run the model under mixed precision (torch.autocast): tensor "
            "cores compute faster in 16 bits than in float32 or TF32"
        ),
        only=(Fact.PYTORCH, Fact.TENSOR_CORES),
        unless=(Fact.REDUCED, Fact.NO_MATRIX),
    ),
    Step(
        MEDIUM_TERM,
        ("Compute matrix products on tensor cores in 16 bits or TF32, as cuBLAS does (cublasSetMathMode)"),
        only=(Fact.TENSOR_CORES, Fact.MATRIX),
        unless=(Fact.REDUCED, Fact.PYTORCH),
    ),
    Step(
        MEDIUM_TERM,
        "Fuse chains of elementwise operations (torch.compile)",
        only=(Fact.PYTORCH, Fact.ELEMENTWISE),
        unless=(Fact.COMPILED,),
    ),
    Step(
        LONG_TERM,
        ("Change the algorithm or the model if the longest kernel is already near its roof"),
    ),
)

FOR_IDLE_BESIDE = (
    Step(
        IMMEDIATE,
        ("Check which GPUs the program uses (CUDA_VISIBLE_DEVICES), and whether the idle GPU should work"),
    ),
    Step(
        IMMEDIATE,
        ("Divide the batch over all GPUs (torch.nn.parallel.DistributedDataParallel)"),
        only=(Fact.PYTORCH,),
    ),
    Step(MEDIUM_TERM, "Release unused GPUs of the job"),
)

FOR_MEMORY_BOUND = (
    Step(IMMEDIATE, "Record which level of the memory limits: {ncu}", unless=(Fact.DRAM_LIMITS,)),
    Step(
        IMMEDIATE,
        ("Read and write each value once: fuse elementwise operations (torch.compile)"),
        only=(Fact.PYTORCH, Fact.DRAM_LIMITS),
        unless=(Fact.COMPILED,),
    ),
    Step(
        IMMEDIATE,
        ("Read and write each value once: fuse kernels that pass arrays to each other"),
        only=(Fact.DRAM_LIMITS,),
        unless=(Fact.PYTORCH,),
    ),
    Step(
        IMMEDIATE,
        "Use 16-bit types if accuracy allows it (torch.autocast)",
        only=(Fact.PYTORCH, Fact.DRAM_LIMITS),
        unless=(Fact.REDUCED,),
    ),
    Step(
        IMMEDIATE,
        "Use 16-bit types if accuracy allows it",
        only=(Fact.DRAM_LIMITS,),
        unless=(Fact.REDUCED, Fact.PYTORCH),
    ),
    Step(
        IMMEDIATE,
        (
            "Serve more requests at a time (of text with continuous batching, "
            "as vLLM does): they share one read of the weights"
        ),
        only=(Fact.INFERENCE,),
        unless=(Fact.NO_MATRIX,),
    ),
    Step(
        MEDIUM_TERM,
        ("Store the weights in 8 or 4 bits (FP8, INT8, INT4), and check the accuracy"),
        only=(Fact.INFERENCE,),
        unless=(Fact.NO_MATRIX,),
    ),
    Step(
        MEDIUM_TERM,
        "Coalesce accesses and use vector loads (float4)",
        unless=(Fact.LIBRARY_KERNELS,),
    ),
    Step(MEDIUM_TERM, "Keep reused data in __shared__ memory", unless=(Fact.LIBRARY_KERNELS,)),
    Step(LONG_TERM, ("Change the algorithm so that it computes more per byte: tiling, recomputation")),
)
