"""The command line: JSON for programs, words for people, one sentence and exit code 2 for mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hf_efficient.cards import CARDS
from hf_efficient.cli import main
from hf_efficient.describe import KINDS
from hf_efficient.machine import this_machine
from hf_efficient.presets import PRESETS
from hf_efficient.tricks import catalogue


def _json(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main([*argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """`list` has every trick with its facts, every preset, recipe, config and card."""
    data = _json(capsys, "list", "--json")
    assert list(data) == list(KINDS)
    assert [row["name"] for row in data["tricks"]] == sorted(catalogue())
    assert set(data["tricks"][0]) == {"name", "family", "saves", "costs", "numerics"}
    assert [row["name"] for row in data["presets"]] == list(PRESETS)
    assert [row["name"] for row in data["gpus"]] == [card.name for card in CARDS]
    assert all(row["source"] for row in data["gpus"])


@pytest.mark.parametrize("kind", KINDS)
def test_list_of_one_kind_has_that_kind(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`list KIND` has one list, and as text one line per row that names it."""
    data = _json(capsys, "list", kind, "--json")
    assert list(data) == [kind]
    assert main(["list", kind]) == 0
    text = capsys.readouterr().out
    assert all(row["name"] in text for row in data[kind])
    lines = [line for line in text.splitlines() if not line.startswith("unmet: ")]
    assert len(lines) == len(data[kind]) + 3, "a pipe gets a line a row: title, names, rows, empty line"
    assert ("unmet: fp16 needs an accelerator" in text) == (kind == "tricks" and not this_machine().accelerator)


@pytest.mark.parametrize("name", [*catalogue(), *PRESETS, "zero(3, 'all')"])
def test_explain_has_a_page_for_everything(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`explain` prints the docstring, the needs and what is set in each target."""
    page = _json(capsys, "explain", name, "--json")
    assert {"name", "doc", "settings", "needs", "checks", "figures"} <= page.keys()
    assert main(["explain", name]) == 0
    text = capsys.readouterr().out
    assert page["doc"] in text
    assert all(setting["key"] in text for setting in page["settings"])


def test_explain_tells_what_became_of_apex(capsys: pytest.CaptureFixture[str]) -> None:
    """The page of adamw_fused names apex's optimizer."""
    main(["explain", "adamw_fused"])
    assert "adamw_apex_fused" in capsys.readouterr().out


def test_plan_shows_authors_and_effective_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """`plan` gives settings with authors, what was replaced, what is unmet on the card, and the effective batch."""
    names = ["plan", "lean", "adafactor", "batch_size(4, effective=64)", "--gpu", "T4", "--processes", "2"]
    data = _json(capsys, *names, "--json")
    steps = [s for s in data["settings"] if s["key"] == "gradient_accumulation_steps"]
    assert {(s["target"], s["value"], s["by"]) for s in steps} >= {("trainer", 8, "batch_size(4, 64)")}
    assert data["effective_batch"] == 64
    assert data["replaced"] == ["adafactor replaces lean's adamw_8bit."]
    assert [sentence.split()[0] for sentence in data["unmet"]] == ["bf16", "tf32"]
    assert main(names) == 0
    assert "unmet: bf16 needs" in capsys.readouterr().out


def test_plan_takes_tricks_out(capsys: pytest.CaptureFixture[str]) -> None:
    """`--without` is repeatable."""
    data = _json(capsys, "plan", "fast", "--without", "compile", "--without", "tf32", "--json")
    assert not {"torch_compile", "tf32"} & {setting["key"] for setting in data["settings"]}
    assert len(data["replaced"]) == 2


def test_emit_writes_the_file_and_nothing_else_on_stdout(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """stdout is the file; unmet needs go to stderr; -o writes it instead."""
    assert main(["emit", "training-args", "fast", "--gpu", "T4"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["bf16"] is True
    assert "unmet: bf16 needs" in err
    path = tmp_path / "args.json"
    assert main(["emit", "training-args", "fast", "--gpu", "T4", "-o", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert path.read_text() == out


def test_emit_for_sft_writes_the_silence_out(capsys: pytest.CaptureFixture[str]) -> None:
    """For SFTConfig what the plan leaves off is written as off."""
    assert _json(capsys, "emit", "training-args", "safe", "--class", "sft")["bf16"] is False


def test_machine_is_this_one_or_a_named_card(capsys: pytest.CaptureFixture[str]) -> None:
    """`machine` describes the machine at hand, `--gpu` a card of the table."""
    assert _json(capsys, "machine", "--json")["cpu_cores"] >= 1
    assert _json(capsys, "machine", "--gpu", "A100 80gb", "--json")["capability"] == "8.0"
    assert main(["machine"]) == 0
    assert "torch:" in capsys.readouterr().out


def test_recipes_and_configs_are_copied(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`recipe copy` and `config copy` put the file into a folder, which is made if need be."""
    assert main(["recipe", "copy", "causal_lm", str(tmp_path / "new")]) == 0
    assert main(["config", "copy", "zero3_offload", str(tmp_path / "new")]) == 0
    assert main(["config", "copy", "launch/zero3_offload", str(tmp_path / "new")]) == 0
    assert "copied" in capsys.readouterr().out
    names = {"causal_lm.py", "zero3_offload.json", "zero3_offload.yaml"}
    assert {path.name for path in (tmp_path / "new").iterdir()} == names
    assert _json(capsys, "recipe", "list", "--json")["recipes"]
    assert _json(capsys, "config", "list", "--json")["configs"]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["plan", "bf61"], "There is no trick or preset 'bf61': did you mean bf16?"),
        (["plan", "zero(5)"], "zero: stage must be 1, 2 or 3, not 5."),
        (["plan", "bf16", "fp16"], "both of the family precision"),
        (["plan", "fast", "--without", "fp16"], "has no fp16 to leave out"),
        (["plan", "batch_size(24, effective=64)"], "Take per_device 16 or 32"),
        (["plan", "fast", "--gpu", "A100"], "A100-40GB"),
        (["plan", "fast", "--gpu", "rtx4091"], "RTX 4090"),
        (["plan", "fast", "--processes", "0"], "at least one process"),
        (["plan"], "Missing argument"),
        (["plan", "fast", "--nonsense"], "No such option"),
        (["explain", "gradient_acumulation"], "did you mean gradient_accumulation?"),
        (
            ["emit", "deepspeed", "safe"],
            "take zero1, zero2, zero2_offload, zero3, zero3_offload or",
        ),
        (["emit", "deepsped", "zero2"], "did you mean deepspeed?"),
        (["emit", "training-args", "batch_size(4, effective=64)"], "add --processes N"),
        (["emit", "training-args", "safe", "--class", "dpo"], "dpo"),
        (["emit", "training-args", "safe", "-o", "/nowhere/at/all.json"], "Cannot write /nowhere/at/all.json"),
        (["list", "trikcs"], "did you mean tricks?"),
        (["recipe", "copy", "causal_ml", "."], "did you mean causal_lm?"),
        (["config", "copy", "zero4", "."], "There is no config 'zero4'"),
        (["lst"], "lst"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing on stdout, one line on stderr that says what is wrong and what would be right."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_no_arguments_show_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """`hf-efficient` alone lists its commands."""
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(
        command in text for command in ("list", "explain", "plan", "emit", "memory", "machine", "recipe", "config")
    )
