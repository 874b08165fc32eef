"""LoRA adapters of SmolLM2-135M in the format of PEFT, with weights by chance: each changes what the model answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LAYERS, HIDDEN, RANK = 30, 576, 8
OUTPUTS = {"q_proj": 576, "v_proj": 192}
STRENGTH = 0.2  # large enough for other answers, small enough for words


def make_adapter(folder: Path, base: Path, seed: int) -> Path:
    """Write one; returns its folder."""
    import numpy as np
    from safetensors.numpy import save_file

    chance = np.random.default_rng(seed)

    def drawn(rows: int, columns: int, scale: float) -> Any:
        return (chance.standard_normal((rows, columns)) * scale).astype(np.float32)

    weights = {}
    for layer in range(LAYERS):
        for name, outputs in OUTPUTS.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{at}.lora_A.weight"] = drawn(RANK, HIDDEN, HIDDEN**-0.5)
            weights[f"{at}.lora_B.weight"] = drawn(outputs, RANK, STRENGTH)
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": sorted(OUTPUTS),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
