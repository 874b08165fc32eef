"""Another model than the demo's on a measurement's command line."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.engine.setup import add_choice, chosen, is_usual


def parsed(*words: str) -> argparse.Namespace:
    """Returns the arguments of a command line."""
    parser = argparse.ArgumentParser()
    add_choice(parser)
    return parser.parse_args(words)


def test_another_model_is_taken_and_keeps_away_from_the_usual_report(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    args = parsed("--model", str(tmp_path), "--engine-args=--max-num-seqs 256")
    setup = chosen(args)
    assert setup.folder == tmp_path
    assert setup.given[-2:] == ("--max-num-seqs", "256")
    assert not is_usual(args)
    assert not is_usual(parsed("--engine-args=--max-num-seqs 256"))
    assert is_usual(parsed())


def test_a_folder_without_a_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--model", str(tmp_path))
    assert f"argument --model: {tmp_path}: no model there" in capsys.readouterr().err
