"""Speed and capacity of engines: profiles that the simulated engine follows.

A `Profile` holds measurements of one engine and returns the seconds of a step for a number of sequences. Capacity
planning (`streamfleet plan`) reads the same profiles. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Profile:
    """Latency and capacity of one engine with one model on one machine.

    Attributes:
        name: engine, model and machine that were measured.
        prefill_s_per_token: seconds that each prompt token costs before the first output token.
        throughput: (sequences running together, output tokens per second of all together), ascending.
        slots: most sequences that run together.
        kv_tokens: tokens of KV cache.
        max_model_len: prompt plus output tokens of one sequence.
        jitter: relative standard deviation of a step's duration.
    """

    name: str
    prefill_s_per_token: float
    throughput: tuple[tuple[int, float], ...]
    slots: int
    kv_tokens: int
    max_model_len: int
    jitter: float = 0.05

    def step_s(self, running: int) -> float:
        """Seconds of one decoding step with so many sequences, interpolated between measurements."""
        points = [(batch, batch / rate) for batch, rate in self.throughput]
        if len(points) == 1 or running <= points[0][0]:
            return points[0][1]
        for (low, low_s), (high, high_s) in pairwise(points):
            if running <= high or high == points[-1][0]:
                return low_s + (high_s - low_s) * (running - low) / (high - low)
        raise AssertionError("the last pair takes every remaining case")


# Measured with vLLM 0.32 on two CPU cores, bfloat16, eager, a KV cache of 1 GiB.
SMOLLM2_135M_CPU = Profile(
    name="SmolLM2-135M-Instruct on 2 CPU cores",
    prefill_s_per_token=0.0014,
    throughput=((1, 46), (4, 136), (8, 228), (16, 290), (32, 349), (64, 389), (128, 418)),
    slots=32,
    kv_tokens=46_592,
    max_model_len=8_192,
)

# Not measured; round numbers in the range of a mid-size model on one data-centre GPU, for load tests.
GENERIC_FAST = Profile(
    name="generic fast engine (not measured)",
    prefill_s_per_token=0.000_05,
    throughput=((1, 100), (32, 2_500), (256, 10_000)),
    slots=256,
    kv_tokens=400_000,
    max_model_len=8_192,
)
