"""How well does the training use the GPUs, how does it scale, and how long will it take?

Conventions
-----------
Rates are of all GPUs together, never of one. Operations are those that the model needs (model FLOP), peaks the dense
ones of the precision that ran; there is no default for either. Communication is not FLOP: it lowers a share of the
peak, and is never counted into one. A share above 1 is refused, one above 0.7 is flagged. Times are ns.

The share of the peak of a traced run, from the shapes of its operators, is `perfkit.analysis.flops.mfu`.

Functions
---------
active_parameters        parameters that a token passes through in a mixture-of-experts model
flops_per_token          operations to train on one token: 6 N and the attention
samples_per_s            samples trained per second
tokens_per_s             tokens trained per second
mfu, hfu                 share of the peak with what the model needs, and with what is computed twice
reported_mfu             share of the peak in the reports of DeepSpeed and Megatron
expected_tokens_per_s    throughput at a share of the peak
implied_peak_ratio       what must have changed beside the speed for two shares of the peak to be true
scaling, scaling_fit     efficiency over the number of GPUs, and the serial and communication shares that explain it
training_time            time to train on a number of tokens
all_reduce_time          time of an all-reduce over a ring
decode_floor             least time to generate a token
checkpoint_time          time to write the weights and the optimizer's state

References
----------
Chowdhery et al.: PaLM, arXiv 2204.02311, appendix B.
"""

from perfkit.analysis.efficiency.growth import RUNS, scaling, scaling_fit
from perfkit.analysis.efficiency.reports import reported_mfu
from perfkit.analysis.efficiency.times import all_reduce_time, checkpoint_time, decode_floor, training_time
from perfkit.analysis.efficiency.utilisation import expected_tokens_per_s, hfu, implied_peak_ratio, mfu
from perfkit.analysis.efficiency.work import active_parameters, flops_per_token, samples_per_s, tokens_per_s

__all__ = [
    "RUNS",
    "active_parameters",
    "all_reduce_time",
    "checkpoint_time",
    "decode_floor",
    "expected_tokens_per_s",
    "flops_per_token",
    "hfu",
    "implied_peak_ratio",
    "mfu",
    "reported_mfu",
    "samples_per_s",
    "scaling",
    "scaling_fit",
    "tokens_per_s",
    "training_time",
]
