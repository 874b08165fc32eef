"""The long runs: all parts of all targets, a row each, of at most twelve minutes on two cores."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One part of a target.

    Attributes:
        target: of the Makefile.
        command: module and arguments; `{seed}` stands for the seed of both tries.
        expected_until: what has to be done before this can pass; empty if it has to pass.
    """

    target: str
    command: str
    expected_until: str = ""


WITHOUT_VLLM = "pytest --numprocesses=2 -m 'long and not needs_vllm'"
WITH_VLLM = "pytest -m 'long and needs_vllm'"
ROWS = (
    Row("fault", "tests.fault --seed {seed} --part 1/2"),
    Row("fault", "tests.fault --seed {seed} --part 2/2"),
    Row("fault", "tests.fault.readers --seed {seed}"),
    Row("fault-mutants", "tests.fault.mutants --part 1/2"),
    Row("fault-mutants", "tests.fault.mutants --part 2/2"),
    Row("fault-recovery", "tests.fault.recovery --seed {seed} --part 1/2"),
    Row("fault-recovery", "tests.fault.recovery --seed {seed} --part 2/2"),
    Row("fault-ha", "tests.ha sentinel"),
    Row("fault-ha", "tests.ha cluster"),
    Row("fault-ha", "tests.ha wait"),
    Row("fault-vllm", "tests.fault --engine vllm --seed {seed}"),
    Row("fault-vllm", "tests.fault.resuming --seed {seed} --answers 250"),
    Row("fault-vllm", "tests.fault.resuming --seed {seed}7 --answers 250"),
    Row("hostile", "tests.hostile --seed {seed} --good 250 --hostile 250 --rounds 3"),
    Row("hostile", "tests.hostile --seed {seed}7 --good 250 --hostile 250 --rounds 3"),
    Row("fuzz", "tests.fuzz --seed {seed}"),
    Row("observe", "monitoring.observe --seconds 240"),  # it ends once all data came; on a busy machine, late
    Row("pods", "tests.pods"),
    Row("clients", "tests.clients"),
    Row("test-long", f"{WITHOUT_VLLM} tests/scripts/test_mutants.py"),
    Row("test-long", f"{WITHOUT_VLLM} tests/scripts --ignore tests/scripts/test_mutants.py"),
    Row("test-long", f"{WITHOUT_VLLM} tests/security"),
    Row("test-long", f"{WITHOUT_VLLM} --ignore tests/scripts --ignore tests/security"),
    Row("test-long", f"{WITH_VLLM} tests/contract"),
    Row("test-long", f"{WITH_VLLM} --ignore tests/contract"),
    Row("upgrade", "tests.upgrade --seed {seed}"),
)
