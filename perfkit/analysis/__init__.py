"""Questions asked of the tables: tables in, tables or numbers out; nothing is drawn or read here.

An argument named after a table (`kernels`, `api_calls`, ...) is that table, and may be empty;
another frame raises SchemaError. `window` is (start_ns, end_ns), two integers, half open;
everything when omitted; ValueError if it does not end after it starts. Where an answer names a
Table constant, that constant lists its columns. Times are int64 ns, intervals half open. The end of
a column's name is its unit: _ns, _bytes, _per_s (per second), _frac (float64 in 0..1 unless said
otherwise; NaN where the denominator is 0 or unknown). `rank` and `gpu` are int32, counts int64,
names and kinds categories, means and medians float64.
"""

from perfkit.analysis import (
    access,
    alignment,
    calltree,
    causes,
    checkpoints,
    clocks,
    communication,
    compare,
    completeness,
    dossier,
    efficiency,
    flops,
    gaps,
    grouping,
    host,
    kernels,
    lanes,
    limiters,
    llm_operations,
    memory,
    operators,
    ownership,
    phases,
    python_functions,
    ranks,
    readings,
    repetitions,
    roofline,
    scaling,
    steps,
    timeline,
    warps,
    whatif,
)

__all__ = [
    "access",
    "alignment",
    "calltree",
    "causes",
    "checkpoints",
    "clocks",
    "communication",
    "compare",
]
__all__ += ["completeness", "dossier", "efficiency"]
__all__ += [
    "flops",
    "gaps",
    "grouping",
    "host",
    "kernels",
    "lanes",
    "limiters",
    "llm_operations",
    "memory",
]
__all__ += [
    "operators",
    "ownership",
    "phases",
    "python_functions",
    "ranks",
    "readings",
    "repetitions",
    "roofline",
    "scaling",
    "steps",
]
__all__ += ["timeline", "warps", "whatif"]
