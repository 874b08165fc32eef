"""The model and the engine arguments that all contenders share."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from streamfleet.cli.demo.model import MODEL_NAME, model_folder
from streamfleet.worker.engine.vllm_setup import arguments, is_cpu_build

# Without the prefix cache: contenders get the same prompts, and a cached prompt is less work.
GIVEN = ("--max-model-len", "2048", "--no-enable-prefix-caching", "--served-model-name", MODEL_NAME)


@dataclass(frozen=True)
class EngineSetup:
    """Model and arguments of an engine.

    Attributes:
        folder: folder of the model.
        given: vLLM's arguments in a worker's settings.
        cpu: true if vLLM's CPU build is installed.
        environment: variables for vLLM itself.
    """

    folder: Path
    given: tuple[str, ...]
    cpu: bool
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> list[str]:
        """All of vLLM's arguments: the given ones, and those that a worker adds."""
        return arguments(self.given, cpu=self.cpu)

    def worker_environment(self) -> Mapping[str, str]:
        """Settings of a worker that hosts this engine."""
        return {
            "STREAMFLEET_ENGINE": "vllm",
            "STREAMFLEET_MODEL": str(self.folder),
            "STREAMFLEET_ENGINE_ARGS": shlex.join(self.given),
            **self.environment,
        }


def engine_setup(*more: str, folder: Path | None = None) -> EngineSetup:
    """Returns the setup of a model with the arguments that a worker gives vLLM.

    Args:
        more: further arguments of vLLM.
        folder: the model; None for the demo's, which is made on first use.

    Raises:
        ModelMissing: a package that the model is made from is not installed.
    """
    return EngineSetup(folder or model_folder(print), GIVEN + more, is_cpu_build())
