"""Lengths of answers that a queue has learnt, for a plan. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from streamfleet.operator.broker.audit import Audit
from streamfleet.operator.plan.arrivals import Shape, length


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths that requests have had.

    Attributes:
        outputs: mean output, by tenant and class of asked limit.
        prompt_tokens, output_tokens: means of all requests; None where none is known.
    """

    outputs: Mapping[tuple[str, str], float]
    prompt_tokens: int | None
    output_tokens: int | None

    def output(self, tenant: str, limit: int | None, chance: random.Random, shape: Shape) -> int | None:
        """An output of a tenant's request with this limit, spread around the mean; None if none is known."""
        mean = self.outputs.get((tenant, length_class(limit)))
        if mean is None:
            return None
        drawn = length(chance, max(1, round(mean)), shape)
        return drawn if limit is None else min(drawn, limit)


def length_class(limit: int | None) -> str:
    """Class of an asked limit, as lua/order/tenant_lengths.lua has it."""
    return "none" if limit is None else str(math.floor(2 * math.log2(limit + 1)))


def learnt(audit: Audit) -> Lengths:
    """The lengths of an audited queue; each tenant counts by its requests, each of its classes by its samples."""
    tokens = outputs = requests = 0.0
    for name, tenant in audit.tenants.items():
        classes = audit.lengths.get(name, {})
        samples = sum(number for number, _ in classes.values())
        if tenant.requests <= 0 or samples <= 0:
            continue
        requests += tenant.requests
        tokens += tenant.tokens
        outputs += tenant.requests * sum(number * mean for number, mean in classes.values()) / samples
    means = {(name, label): mean for name, found in audit.lengths.items() for label, (_, mean) in found.items()}
    if not requests:
        return Lengths(means, None, None)
    return Lengths(means, max(1, round((tokens - outputs) / requests)), max(1, round(outputs / requests)))
