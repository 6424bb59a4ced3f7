"""The metrics of SAMPLES: one canonical name per quantity, whoever read it; the suffix is the unit.

The four meanings of "GPU utilisation" are four metrics: gpu_busy_frac, sm_active_frac, sm_occupancy_frac and
the arithmetic pipes' activity. A reader that finds another metric than these names it by their pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

METRICS: Mapping[str, str] = MappingProxyType(
    {
        "gpu_busy_frac": "share of the sampling period in which at least one kernel ran (nvidia-smi's utilisation)",
        "memory_busy_frac": "share of the period in which device memory was accessed; not bandwidth",
        "encoder_busy_frac": "share of the period in which the video encoder worked",
        "decoder_busy_frac": "share of the period in which the video decoder worked",
        "jpeg_busy_frac": "share of the period in which the JPEG engine worked",
        "ofa_busy_frac": "share of the period in which the optical-flow engine worked",
        "graphics_active_frac": "share of cycles in which the graphics or compute engine was active (DCGM 1001)",
        "sm_active_frac": "share of cycles with at least one warp resident, mean over the SMs (DCGM 1002)",
        "sm_occupancy_frac": "warps resident over the most an SM holds, mean over the SMs (DCGM 1003)",
        "tensor_active_frac": "share of cycles in which a tensor pipe worked (DCGM 1004)",
        "dram_active_frac": "share of cycles in which device memory moved data (DCGM 1005)",
        "fp64_active_frac": "share of cycles in which an FP64 pipe worked (DCGM 1006)",
        "fp32_active_frac": "share of cycles in which an FP32 pipe worked (DCGM 1007)",
        "fp16_active_frac": "share of cycles in which an FP16 pipe worked (DCGM 1008)",
        "power_w": "power drawn by the board",
        "power_limit_w": "enforced power limit",
        "energy_j": "energy since the driver was loaded",
        "temperature_c": "temperature of the GPU",
        "memory_temperature_c": "temperature of the device memory",
        "temperature_slowdown_c": "temperature from which on the GPU slows down",
        "temperature_shutdown_c": "temperature at which the GPU turns itself off",
        "temperature_max_c": "highest temperature for operation",
        "temperature_margin_c": "degrees below the limit (T.Limit); 0 and below is at the limit",
        "fan_frac": "fan speed over its maximum",
        "sm_clock_hz": "clock of the SMs",
        "sm_max_clock_hz": "highest clock of the SMs",
        "memory_clock_hz": "clock of the device memory",
        "memory_used_bytes": "device memory in use, of all processes",
        "memory_free_bytes": "device memory that is free",
        "memory_total_bytes": "device memory",
        "driver_reserved_bytes": "device memory that the driver keeps for itself",
        "memory_allocated_bytes": "device memory that tensors occupy (framework)",
        "memory_reserved_bytes": "device memory that the framework's allocator holds",
        "bar1_used_bytes": "BAR1 memory in use",
        "pcie_rx_bytes_per_s": "PCIe traffic to the GPU",
        "pcie_tx_bytes_per_s": "PCIe traffic from the GPU",
        "nvlink_rx_bytes_per_s": "NVLink traffic to the GPU",
        "nvlink_tx_bytes_per_s": "NVLink traffic from the GPU",
        "nvlink_bytes_per_s": "NVLink traffic in both directions",
        "power_violation_frac": "share of the period below the wanted clock because of power",
        "thermal_violation_frac": "1 if the clock was lowered because of heat in the period, else 0",
        "throttled_power_frac": "1 if an event reason lowered the clock because of power (software or hardware), else 0",
        "throttled_thermal_frac": "1 if an event reason lowered the clock because of heat, else 0",
        "throttled_other_frac": "1 if another event reason than idleness, power or heat lowered the clock, else 0",
        "idle_frac": "1 if the event reason is that the GPU is idle, else 0",
        "ecc_corrected_count": "memory errors that were corrected, since the driver was loaded",
        "ecc_uncorrected_count": "memory errors that were not corrected, since the driver was loaded",
        "pcie_replay_count": "PCIe packets that were sent again, since the driver was loaded",
        "xid_count": "number of the last XID error; 0 none",
        "model_parameters_count": "parameters of the model",
        "forward_flops": "floating-point operations of a forward pass",
        "forward_ns": "time of a forward pass",
        "backward_ns": "time of a backward pass",
        "step_ns": "time of the optimizer's step",
        "iteration_ns": "time of an iteration",
        "forward_flops_per_s": "operations of the forward pass over its time",
        "backward_flops_per_s": "operations of the backward pass over its time",
        "training_flops_per_s": "operations of forward and backward pass over their time",
        "samples_per_s": "samples that are trained per second",
        "tokens_per_s": "tokens that are processed per second",
        "batch_size_count": "samples in a batch of one GPU",
        "world_size_count": "GPUs that train together",
    }
)
