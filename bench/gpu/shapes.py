"""Model folders that vLLM loads offline: the shape of a known model, for random weights, and a tokenizer.

A model's shape decides its work; its texts do not. The tokenizer knows the words of the measurements' prompts
(`bench.engine.work`) and has as many tokens as the model has ids, because random weights produce any of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.engine.work import WORDS
from streamfleet.cli.demo.model import cache_folder

RANDOM_WEIGHTS = ("--load-format", "dummy")
"""Arguments with which vLLM is started on such a folder."""
BEGIN, END = "<|begin|>", "<|end|>"
TEMPLATE = "{% for message in messages %}<|begin|>{{ message['content'] }}<|end|>{% endfor %}<|begin|>"
_LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama-3-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
    },
    "smollm2-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
}


def shape_folder(name: str, parent: Path | None = None) -> Path:
    """Write the folder of one of `SHAPES` and return it.

    Args:
        name: name of the shape.
        parent: parent folder; streamfleet's cache if None. With the same path, vLLM finds its earlier compilation
            again.
    """
    folder = (parent or cache_folder()) / f"{name}-random"
    folder.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[name]
    _write_tokenizer(shape["vocab_size"], folder)
    rope = {"rope_type": "default", "rope_theta": shape["rope_theta"]}
    _write(folder / "config.json", {**_LLAMA, **shape, "rope_parameters": rope})
    return folder


def _write_tokenizer(size: int, folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in (BEGIN, END)]
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        min_frequency=1,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["Tell a story with these words: " + " ".join(WORDS)], trainer)
    made = json.loads(tokenizer.to_str())
    vocabulary = made["model"]["vocab"]
    vocabulary |= {f"Ġt{number}": number for number in range(len(vocabulary), size)}
    _write(folder / "tokenizer.json", made)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    _write(folder / "tokenizer_config.json", config)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
