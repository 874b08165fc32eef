"""What a fleet gets done in time: urgent beside patient work, tenants, deadlines, and sessions at their caches.

The real scripts on a real Redis, with a worker's own admission, on one engine in virtual time; `vllm` on a real one.
"""

from __future__ import annotations

from bench.core.parts import Parts
from bench.goodput import deadlines, sessions, tenants, urgent, vllm

PARTS: Parts = {
    "urgent": urgent.measure,
    "tenants": tenants.beside,
    "shares": tenants.shares,
    "deadlines": deadlines.measure,
    "sessions": sessions.measure,
    "sessions_of_tenants": sessions.measure_tenants,
    "vllm": vllm.measure,
}
APART = ("vllm",)
"""Only where they are asked for: an engine in real time."""
