"""Recipes, called in this process on a tiny model: they train, save, summarise, and refuse in one sentence."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.py"))
WORDS = [f"w{number % 100}" for number in range(4000)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Forty texts of unequal lengths as JSON lines."""
    path = tmp_path / "notes.jsonl"
    texts = [" ".join(WORDS[number * 7 : number * 7 + 5 + number]) for number in range(40)]
    path.write_text("".join(json.dumps({"text": text, "source": number}) + "\n" for number, text in enumerate(texts)))
    return path


@pytest.fixture(params=RECIPES)
def recipe(request: pytest.FixtureRequest) -> Callable[[list[str]], Any]:
    """Return the `main` of a recipe."""
    main: Callable[[list[str]], Any] = runpy.run_path(str(ROOT / "recipes" / f"{request.param}.py"))["main"]
    return main


@pytest.mark.launch
def test_it_trains_a_model_that_loads_and_generates(
    recipe: Callable[[list[str]], Any], tiny: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss falls, the summary names authors and results, and the saved model generates text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "out"
    recipe([
        "--model", str(tiny), "--data", str(data), "--output_dir", str(out), "--max_steps", "30", "--seq-len", "32",
        "--learning_rate", "0.01", "--plan", "safe", "activation_checkpointing", "batch_size(4, effective=8)",
        "--without", "data_loading",
    ])  # fmt: skip
    printed = capsys.readouterr().out
    before, after = map(float, printed.split("evaluation loss")[1].split("\n")[0].split("->"))
    assert after < before - 0.5
    for said in (
        "What each trick set",
        "adamw_fused",
        "What came out",
        "tokens/s",
        "peak memory",
        str(out),
        "max_steps=30",
    ):
        assert said in printed
    assert "Accumulation 2: 8 samples per update / (4 per device x 1 process)." in printed
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    ids = model.generate(**tokenizer("w1 w2 w3", return_tensors="pt"), max_new_tokens=4, min_new_tokens=4)
    assert ids.shape == (1, 7)
    assert tokenizer.decode(ids[0])


@pytest.mark.launch
@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("lora_finetune", "lora decides dtype: 'auto', not the 'float32' of bf16."),
        ("qlora_finetune", "load_in_4bit"),
        ("sft", "padding_free=True"),
    ],
)
def test_it_fine_tunes(
    recipe: Callable[[list[str]], Any], plan: str, said: str, tiny: Path, data: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """With adapters or packed rows the loss falls too, and what is saved loads by the same name and generates."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "out"
    recipe([
        "--model", str(tiny), "--data", str(data), "--output_dir", str(out), "--max_steps", "20", "--seq-len", "32",
        "--learning_rate", "0.02", "--plan", plan, "batch_size(4)", "data_loading(0)",
    ])  # fmt: skip
    printed = capsys.readouterr().out
    before, after = map(float, printed.split("evaluation loss")[1].split("\n")[0].split("->"))
    assert after < before - 0.1
    assert said in printed
    assert (out / "adapter_model.safetensors").exists() == ("lora" in plan)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.generate(**tokenizer("w1 w2", return_tensors="pt"), max_new_tokens=2, min_new_tokens=2).shape == (1, 4)


def test_adapters_on_nothing_are_refused(
    recipe: Callable[[list[str]], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The small model that is made here has no pretrained weights for an adapter to go with."""
    with pytest.raises(SystemExit) as stopped:
        recipe(["--plan", "lora", "--output_dir", str(tmp_path)])
    assert stopped.value.code == 2
    assert "lora trains adapters on a pretrained model: name one with --model." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--plan", "bf61"], "did you mean bf16?"),
        (["--plan", "bf16", "fp16"], "both of the family precision"),
        (["--plan", "fp16"], "This plan cannot run here: fp16 needs an accelerator"),
        (["--plan", "batch_size(24, effective=64)"], "Take per_device 16 or 32"),
        (["--plan", "safe", "--without", "fp16"], "has no fp16 to leave out"),
        (["--learnig_rate", "1"], "did you mean --learning_rate?"),
        (["--evaluation_strategy", "no"], "use eval_strategy"),
        (["--learning_rate", "fast"], "invalid float value: 'fast'"),
        (["--seq-len", "1"], "--seq-len must be at least 2"),
        (["--seq-len", "4096"], "is more than the 128 positions"),
        (["stray"], "belongs to no flag"),
        (["--per_device_train_batch_size", "0"], "--per_device_train_batch_size must be at least 1, not 0."),
        (["--gradient_accumulation_steps", "-3"], "--gradient_accumulation_steps must be at least 1"),
        (["--max_grad_norm", "-1"], "--max_grad_norm must be at least 0"),
        (["--max_steps", "0", "--warmup_steps", "-3"], "--max_steps must be at least 1, or -1"),
        (["--lr_scheduler_type", "nonsense"], "invalid choice: 'nonsense'"),
        (["--data", ""], "--data is empty"),
        (["--data", "missing.jsonl"], "There is no file or folder missing.jsonl"),
        (["--model", "./missing-model"], "There is no folder ./missing-model: check --model."),
        (["--output_dir", "{data}/out"], "Cannot write to the folder"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    recipe: Callable[[list[str]], Any], argv: list[str], sentence: str, tiny: Path, data: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Nothing is trained or written; the sentence says what is wrong and what would be right."""
    asked = [word.format(data=data) for word in argv]
    if "--model" not in argv:
        asked += ["--model", str(tiny)]
    if "--data" not in argv:
        asked += ["--data", str(data)]
    if "--output_dir" not in argv:
        asked += ["--output_dir", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as exit_:
        recipe(asked)
    assert exit_.value.code == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert sum(line.startswith("error: ") for line in err.splitlines()) == 1
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_broken_model_is_one_sentence(
    recipe: Callable[[list[str]], Any], tiny: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights that are cut off, and a tokenizer with more tokens than the model has embeddings, are named."""
    import shutil

    from transformers import AutoTokenizer

    cut, grown = (Path(shutil.copytree(tiny, tmp_path / name)) for name in ("cut", "grown"))
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    tokenizer = AutoTokenizer.from_pretrained(grown)
    tokenizer.add_tokens(["more"])
    tokenizer.save_pretrained(grown)
    for model, sentence in (
        (cut, f"Cannot load the model {cut}"),
        (grown, "has 129 tokens and the model 128 embeddings"),
    ):
        with pytest.raises(SystemExit) as exit_:
            recipe(["--model", str(model), "--data", str(data), "--output_dir", str(tmp_path / "out")])
        assert exit_.value.code == 2
        assert sentence in capsys.readouterr().err


def test_a_missing_checkpoint_is_one_sentence(
    tiny: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that is no checkpoint of Trainer's, and `true` without one, are refused before training."""
    main = runpy.run_path(str(ROOT / "recipes" / "causal_lm.py"))["main"]
    flags = ["--model", str(tiny), "--data", str(data), "--output_dir", str(tmp_path / "out"), "--plan", "safe"]
    for asked, sentence in ((str(tiny), "is no checkpoint of Trainer's"), ("true", "no checkpoint to resume from")):
        with pytest.raises(SystemExit):
            main([*flags, "--resume_from_checkpoint", asked])
        assert sentence in capsys.readouterr().err


def test_a_token_is_not_printed(tiny: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary of a run lands in logs; a secret on the command line does not."""
    main = runpy.run_path(str(ROOT / "recipes" / "causal_lm.py"))["main"]
    flags = ["--model", str(tiny), "--data", str(data), "--output_dir", str(tmp_path / "out"), "--max_steps", "1"]
    main([*flags, "--hub_token", "secret123", "--eval_on_start", "false", "--plan", "safe"])
    printed = capsys.readouterr().out
    assert "secret123" not in printed
    assert "hub_token=<hidden>" in printed
    assert "->" not in printed, "without an evaluation before there is nothing to compare with"


def test_the_loop_refuses_by_name_what_it_does_not_honour(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A field of TrainingArguments that the loop would ignore is an error, with the trick that does it."""
    main = runpy.run_path(str(ROOT / "recipes" / "accelerate_loop.py"))["main"]
    with pytest.raises(SystemExit):
        main(["--model", str(tiny), "--bf16", "--neftune_noise_alpha", "5"])
    err = capsys.readouterr().err
    assert "does not honour --bf16 and --neftune_noise_alpha" in err
    assert "write --plan bf16" in err


def test_your_value_wins_and_is_said_to_be_yours(
    recipe: Callable[[list[str]], Any], tiny: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A field on the command line replaces the trick's value, and its author is `you`."""
    recipe([
        "--model", str(tiny), "--data", str(data), "--output_dir", str(tmp_path / "out"), "--max_steps", "1",
        "--max_grad_norm", "0.5", "--dataloader_num_workers", "0", "--plan", "safe",
    ])  # fmt: skip
    printed = capsys.readouterr().out
    yours = next(line for line in printed.splitlines() if line.startswith("  you"))
    assert "max_grad_norm=0.5" in yours
    assert "max_grad_norm=1.0" not in printed
    assert "is left out: there are 0 workers" in printed


def test_the_default_plan_is_the_machines(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --plan: cpu without an accelerator, turing below capability 8.0, else fast; the reason is noted."""
    from hf_efficient.emit import here
    from hf_efficient.machine import Machine
    from hf_efficient.train.flags import Flags, recipe_plan

    flags = Flags(model=None, data=None, plan=(), without=(), seq_len=None, given={})
    expected = {"T4": "Preset turing: T4 has no bf16.", "L4": "Preset fast: L4 has bf16."}
    with pytest.MonkeyPatch.context() as patch:
        for gpu, note in expected.items():
            patch.setattr(here, "training_machine", lambda gpu=gpu: Machine.named(gpu))
            assert recipe_plan(flags).notes[-1].startswith(note)
        patch.setattr(here, "training_machine", lambda: Machine())
        assert recipe_plan(flags).notes[-1].startswith("Preset cpu: there is no accelerator here.")


@pytest.mark.launch
def test_a_resumed_run_goes_on_where_it_was(
    tiny: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Resumed from its second checkpoint, a run ends with the model that it had without the break."""
    from safetensors.torch import load_file

    main = runpy.run_path(str(ROOT / "recipes" / "causal_lm.py"))["main"]
    flags = ["--model", str(tiny), "--data", str(data), "--max_steps", "4", "--save_steps", "2", "--plan", "safe"]
    main([*flags, "--output_dir", str(tmp_path / "whole")])
    main([
        *flags, "--output_dir", str(tmp_path / "resumed"),
        "--resume_from_checkpoint", str(tmp_path / "whole" / "checkpoint-2"),
    ])  # fmt: skip
    speed = capsys.readouterr().out.rsplit("speed", 1)[1].split()[0]
    assert float(speed.replace(",", "")) > 0
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed"))
    assert all((whole[key] == resumed[key]).all() for key in whole)
