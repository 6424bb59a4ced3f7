"""Steps of advice, and the code that shows them, that rules of several themes give."""

from perfkit.diagnosis.rules.rule import Fact, later, now, soon

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
    now(
        "Raise num_workers of the DataLoader to the number of CPU cores per GPU",
        when=Fact.PYTORCH & Fact.DATALOADER,
        code=SHOW_DATA_LOADER,
    ),
    now(
        "Set pin_memory=True in the DataLoader and copy with non_blocking=True",
        when=Fact.PYTORCH & Fact.DATALOADER & ~Fact.PINNED,
    ),
    now(
        "Set persistent_workers=True and prefetch_factor=4 in the DataLoader",
        when=Fact.PYTORCH & Fact.DATALOADER,
    ),
    now(
        (
            "Load the data in worker processes, such as those of torch.utils.data.DataLoader "
            "(num_workers, pin_memory=True)"
        ),
        when=Fact.PYTORCH & ~Fact.DATALOADER,
    ),
    now(
        "Read the next batch on another thread while the GPU computes (cudaMemcpyAsync)",
        when=~Fact.PYTORCH,
        code=SHOW_DOUBLE_BUFFER,
    ),
    soon("Decode, tokenise or resize the data once and store it ready to use"),
    soon("Keep the data on local NVMe storage"),
    later("Move preprocessing to the GPU, or to a separate service"),
    later("Store the data in a format for large sequential reads"),
)

FOR_SYNC = (
    now(
        "Remove torch.cuda.synchronize() from the step: PyTorch waits where it must",
        when=Fact.PYTORCH & Fact.DEVICE_WAITS,
    ),
    now(
        "Remove .item(), .cpu() and print of GPU values from the step",
        when=Fact.PYTORCH & ~Fact.DEVICE_WAITS,
        code=SHOW_LATE_LOG,
    ),
    now(
        "Log only every hundredth step of the loop",
        when=Fact.PYTORCH & ~Fact.DEVICE_WAITS,
    ),
    now(
        "Wait for the GPU only where the CPU needs a result, and then for one event (cudaEventSynchronize)",
        when=~Fact.PYTORCH,
    ),
    now(
        "Use pinned memory and asynchronous copies (cudaMemcpyAsync, non_blocking=True)",
        when=Fact.LINK_COPIES & ~Fact.PINNED,
    ),
    soon(
        "Replace waits for the whole GPU by events between streams (cudaStreamWaitEvent)",
        when=Fact.DEVICE_WAITS & ~Fact.PYTORCH,
    ),
    later("Let the CPU run several steps ahead: make no CPU decision depend on the running step"),
)

FOR_LAUNCH = (
    now(
        (
            "Leave out torch.autograd.set_detect_anomaly(True): it checks each gradient for NaN, "
            "and waits for the GPU each time"
        ),
        when=Fact.ANOMALY,
    ),
    now(
        "Use a fused optimizer: one kernel in place of several for each parameter (fused=True)",
        when=Fact.OPTIMIZER_LOOP & ~Fact.FUSED_OPTIMIZER,
        code=SHOW_FUSED,
    ),
    now(
        (
            "Remove .item(), .cpu() and copies of pageable memory from inside the step: a graph "
            "cannot contain them"
        ),
        when=Fact.UNCAPTURABLE,
        code=SHOW_LATE_LOG,
    ),
    now(
        (
            "Give each launch more work: raise batch_size, or run one kernel over all rows instead "
            "of one per row"
        ),
        when=Fact.PYTORCH,
    ),
    now(
        "Give each launch more work: run one kernel over all rows instead of one per row",
        when=~Fact.PYTORCH,
    ),
    now(
        "Compile the step with torch.compile(mode='reduce-overhead')",
        when=Fact.PYTORCH & ~Fact.GRAPHS,
        code=SHOW_COMPILE,
    ),
    soon(
        "Capture the step in a CUDA graph (torch.cuda.graph)",
        when=Fact.PYTORCH & ~Fact.GRAPHS,
        code=SHOW_GRAPH,
    ),
    soon(
        "Capture the step in a CUDA graph (cudaStreamBeginCapture)",
        when=~Fact.PYTORCH & ~Fact.GRAPHS,
    ),
    soon(
        "Use the fused form of the optimizer (fused=True)",
        when=Fact.OPTIMIZER & ~Fact.OPTIMIZER_LOOP & ~Fact.FUSED_OPTIMIZER,
        code=SHOW_FUSED,
    ),
    soon(
        "Use fused attention (torch.nn.functional.scaled_dot_product_attention)",
        when=Fact.UNFUSED_ATTENTION,
        code=SHOW_FUSED,
    ),
    later("Fuse chains of small kernels into one kernel"),
)

FOR_MPI = (
    now(
        (
            "Record more work between MPI_Init and MPI_Finalize, and leave start-up and shut-down "
            "out of the measurement"
        ),
        when=Fact.MPI_SET_UP,
    ),
    now(
        (
            "Compare the ranks (a timeline or call paths of each): a rank with less work waits in "
            "this call"
        ),
        when=~Fact.MPI_SET_UP,
    ),
    now(
        "Bind each rank to cores near the network adapter (--cpu-bind of srun, --map-by of mpirun)",
        when=~Fact.MPI_SET_UP,
    ),
    soon(
        (
            "Start the exchange early and compute before MPI_Wait (MPI_Isend, MPI_Irecv, "
            "MPI_Iallreduce)"
        ),
        when=~Fact.MPI_SET_UP & ~Fact.MPI_WAITS,
    ),
    soon(
        "Move more computation between the start of the exchange and MPI_Wait", when=Fact.MPI_WAITS
    ),
    soon("Merge small messages, and call collectives less often", when=~Fact.MPI_SET_UP),
)

FOR_COPIES = (
    now(
        "Exchange the pointers of two buffers of a GPU instead of copying one into the other",
        when=~Fact.LINK_COPIES,
    ),
    now(
        "Allocate pinned CPU memory (pin_memory=True), and copy with non_blocking=True",
        when=Fact.PYTORCH & Fact.LINK_COPIES & ~Fact.PINNED,
    ),
    now(
        (
            "Keep data on the GPU between the loops: put them in a data region (acc data copyin, "
            "copyout)"
        ),
        when=Fact.OPENACC,
    ),
    now(
        "Keep data on the GPU between the loops: put them in a data region (omp target data map)",
        when=Fact.OPENMP,
    ),
    now(
        "Allocate pinned CPU memory (cudaHostAlloc)",
        when=Fact.LINK_COPIES & ~Fact.PINNED & ~Fact.PYTORCH & ~Fact.OPENACC & ~Fact.OPENMP,
    ),
    now(
        "Copy on a separate stream with cudaMemcpyAsync (non_blocking=True in PyTorch)",
        when=Fact.PYTORCH,
    ),
    now(
        "Copy on a separate stream with cudaMemcpyAsync",
        when=~Fact.PYTORCH & ~Fact.OPENACC & ~Fact.OPENMP,
    ),
    now("Merge small copies into one large copy", when=Fact.SMALL_COPIES),
    soon("Copy the next part while the GPU computes this one", when=~Fact.TO_CPU),
    soon(
        "Copy the results of one step while the GPU computes the next step",
        when=Fact.TO_CPU & Fact.STEPS,
    ),
    later("Keep reused data on the GPU", when=Fact.LINK_COPIES),
)

FOR_COMPUTATION = (
    now(
        "Call torch.topk in place of a sort where only the largest values are needed",
        when=Fact.SORTS,
    ),
    now(
        (
            "Let the embedding have sparse gradients (sparse=True, torch.optim.SparseAdam): a "
            "dense gradient is as large as the table, and the optimizer updates all of it"
        ),
        when=Fact.EMBEDDING_GRADIENT,
    ),
    now("Measure the longest kernels: {ncu}", when=~Fact.COUNTERS),
    now(
        "Remove what limits the longest kernel: step 4 of perfkit lab RUN shows it",
        when=Fact.COUNTERS,
    ),
    soon(
        (
            "Run the model under mixed precision (torch.autocast): tensor cores compute faster in "
            "16 bits than in float32 or TF32"
        ),
        when=Fact.PYTORCH
        & Fact.TENSOR_CORES
        & ~Fact.REDUCED
        & ~Fact.NO_MATRIX
        & ~Fact.TENSOR_LIMITS,
    ),
    soon(
        (
            "Compute matrix products on tensor cores in 16 bits or TF32, as cuBLAS does "
            "(cublasSetMathMode)"
        ),
        when=Fact.TENSOR_CORES
        & Fact.MATRIX
        & ~Fact.REDUCED
        & ~Fact.PYTORCH
        & ~Fact.TENSOR_LIMITS
        & ~Fact.FLOAT64,
    ),
    soon(
        "Fuse chains of elementwise operations (torch.compile)",
        when=Fact.PYTORCH & Fact.ELEMENTWISE & ~Fact.COMPILED,
    ),
    later("Change the algorithm or the model if the longest kernel is already near its roof"),
)

FOR_IDLE_BESIDE = (
    now(
        "Check which GPUs the program uses (CUDA_VISIBLE_DEVICES), and whether the idle GPU "
        "should work",
        when=~Fact.AMD,
    ),
    now(
        "Check which GPUs the program uses (HIP_VISIBLE_DEVICES), and whether the idle GPU "
        "should work",
        when=Fact.AMD,
    ),
    now(
        "Divide the batch over all GPUs (torch.nn.parallel.DistributedDataParallel)",
        when=Fact.PYTORCH & ~Fact.INFERENCE,
    ),
    now(
        "Run a copy of the model on each GPU (device='cuda:1'), or divide the model over the GPUs "
        "(torch.distributed.tensor.parallel)",
        when=Fact.PYTORCH & Fact.INFERENCE,
    ),
    soon("Release unused GPUs of the job"),
)

FOR_MEMORY_BOUND = (
    now("Record which level of the memory limits: {ncu}", when=~Fact.DRAM_LIMITS),
    now(
        "Read and write each value once: fuse elementwise operations (torch.compile)",
        when=Fact.PYTORCH & Fact.DRAM_LIMITS & ~Fact.COMPILED,
    ),
    now(
        "Read and write each value once: fuse kernels that pass arrays to each other",
        when=Fact.DRAM_LIMITS & ~Fact.PYTORCH,
    ),
    now(
        "Use 16-bit types if accuracy allows it (torch.autocast)",
        when=Fact.PYTORCH & Fact.DRAM_LIMITS & ~Fact.REDUCED,
    ),
    now(
        "Use 16-bit types if accuracy allows it",
        when=Fact.DRAM_LIMITS & ~Fact.REDUCED & ~Fact.PYTORCH,
    ),
    now(
        (
            "Serve more requests at a time (of text with continuous batching, as vLLM does): they "
            "share one read of the weights"
        ),
        when=Fact.INFERENCE & ~Fact.NO_MATRIX,
    ),
    soon(
        "Store the weights in 8 or 4 bits (FP8, INT8, INT4), and check the accuracy",
        when=Fact.INFERENCE & ~Fact.NO_MATRIX,
    ),
    soon("Coalesce accesses and use vector loads (float4)", when=~Fact.LIBRARY_KERNELS),
    soon("Keep reused data in __shared__ memory", when=~Fact.LIBRARY_KERNELS),
    later("Change the algorithm so that it computes more per byte: tiling, recomputation"),
)

ON_TENSOR_CORES = (
    now(
        "Allow TF32 in matrix products (torch.set_float32_matmul_precision('high'))",
        when=Fact.PYTORCH & Fact.FLOAT32_PRODUCTS & ~Fact.BEFORE_AMPERE,
    ),
    now(
        "Allow TF32 in convolutions (torch.backends.cudnn.allow_tf32 = True)",
        when=Fact.PYTORCH & Fact.FLOAT32_CONVOLUTIONS & ~Fact.BEFORE_AMPERE,
    ),
    now("Call the matrix library in 16 bits or TF32 (cublasSetMathMode)", when=~Fact.PYTORCH),
    soon("Pad matrix dimensions to multiples of 8, or better of 64"),
)

EXISTING_BUFFERS = soon("Pass existing output buffers to operators (out=)", when=Fact.PYTORCH)
BALANCED_EXCHANGE = now(
    (
        "Balance what the ranks send each other: the load of experts (capacity factor, auxiliary "
        "loss, copies of busy experts), or the tables of embeddings (their sharding plan)"
    ),
    when=Fact.ALL_TO_ALL,
)
