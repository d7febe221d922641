"""Every preset and every target: a file that the installed stack accepts, or one sentence with the preset to take."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_efficient.emit.fields import SFT_SILENCE
from hf_efficient.emit.files import write
from hf_efficient.emit.targets import EMITTERS, Options, emit
from hf_efficient.generate import ROOT, generated
from hf_efficient.machine import Machine
from hf_efficient.merge import make_plan
from hf_efficient.presets import PRESETS
from hf_efficient.shipped import copy, shipped

GPU = Machine(gpu="test", accelerator="cuda", capability=(9, 0), gpus=8, cpu_bf16=True)
FILLED = {  # preset -> targets that have something to write
    name: {"training-args", "accelerate", "python"} | ({"deepspeed"} if name.startswith("zero") else set())
    for name in PRESETS
}


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let TrainingArguments believe in an Ampere GPU; what is built is never run."""
    import transformers.training_args as module

    monkeypatch.setattr(module, "is_torch_bf16_gpu_available", lambda: True)
    monkeypatch.setattr(module, "is_torch_tf32_available", lambda: True)


@pytest.mark.usefixtures("ampere")
@pytest.mark.parametrize("target", EMITTERS)
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_fills_a_target_or_names_one_that_can(name: str, target: str, tmp_path: Path) -> None:
    """The whole table: accepted by the class that reads it, or refused with the preset to take instead."""
    plan = make_plan(name, machine=GPU)
    if target in FILLED[name]:
        READERS[target](emit(plan, target, Options(processes=2)), plan, tmp_path)
        return
    able = "zero1, zero2, zero2_offload, zero3, zero3_offload or zero3_offload_params"
    with pytest.raises(ValueError, match=rf"take {able}\.$"):
        emit(plan, target)


def _read_arguments(text: str, plan: Any, folder: Path) -> None:
    from transformers import HfArgumentParser, TrainingArguments

    fields = {"use_cpu": True} | json.loads(text) | {"tf32": None, "output_dir": str(folder)}
    (args,) = HfArgumentParser(TrainingArguments).parse_dict(fields)
    assert args.optim == plan["trainer"]["optim"]
    assert bool(args.deepspeed) == (plan.engine == "DEEPSPEED")


def _read_launch(text: str, plan: Any, folder: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    path = folder / "launch.yaml"
    path.write_text(text)
    config = load_config_from_file(str(path))
    assert config.num_processes == 2
    assert config.mixed_precision is None, "the script says the precision"
    assert config.distributed_type.value == ("MULTI_GPU" if plan.engine == "NO" else plan.engine)
    assert not {"gradient_accumulation_steps", "gradient_clipping"} & set(config.deepspeed_config)


def _read_deepspeed(text: str, plan: Any, folder: Path) -> None:
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    config = json.loads(text)
    assert not {"optimizer", "scheduler"} & config.keys(), "either block overrides what the script builds"
    assert {"gradient_clipping", "gradient_accumulation_steps"} <= config.keys()
    filled = _fill(config)
    assert DeepSpeedConfig(filled).zero_config.stage == config["zero_optimization"]["stage"]
    DeepSpeedZeroConfig(**filled["zero_optimization"])  # forbids unknown keys


def _fill(config: dict[str, Any]) -> dict[str, Any]:
    """Put numbers for "auto", as TrainingArguments does."""
    numbers = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
    filled = config | numbers | {"gradient_clipping": 1.0, "bf16": {"enabled": True}, "fp16": {"enabled": False}}
    zero = {key: 1000 if value == "auto" else value for key, value in config["zero_optimization"].items()}
    return filled | {"zero_optimization": zero}


def _read_python(text: str, plan: Any, folder: Path) -> None:
    for door in ("trainer", "sft", "accelerate"):
        compile(emit(plan, "python", Options(door=door, processes=2)), door, "exec")


READERS = {"training-args": _read_arguments, "accelerate": _read_launch, "deepspeed": _read_deepspeed,
           "python": _read_python}  # fmt: skip


@pytest.mark.usefixtures("ampere")
@pytest.mark.parametrize("door", ["trainer", "sft"])
@pytest.mark.parametrize("name", PRESETS)
def test_the_python_lines_build_the_same_arguments(name: str, door: Any, tmp_path: Path) -> None:
    """The lines, run, give the arguments that the JSON gives."""
    plan = make_plan(name, machine=GPU)
    source = emit(plan, "python", Options(door=door)).replace("tf32=True", "tf32=None")
    here = f"output_dir={str(tmp_path)!r}," + ("" if name == "cpu" else " use_cpu=True,")
    source = source.replace('output_dir="out",', here)
    space: dict[str, Any] = {}
    exec(source, space)
    for key, value in json.loads(emit(plan, "training-args", Options(args_class=door))).items():
        if key not in ("tf32", "dataloader_pin_memory"):
            held = getattr(space["args"], key)
            held = {inner: held[inner] for inner in value} if key == "fsdp_config" else held  # it fills in the rest
            assert getattr(held, "value", held) == value, key


def test_the_lines_about_adapters_and_data_run(tiny: Path) -> None:
    """The lines for Trainer load in 4 bits, add an adapter in float32, and pack rows."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    space: dict[str, Any] = {}
    exec(emit(make_plan("qlora", "packing"), "python"), space)
    model = AutoModelForCausalLM.from_pretrained(tiny, **space["model_keywords"])
    assert model.is_loaded_in_4bit
    model = space["add_adapter"](model)
    assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {torch.float32}
    rows = Dataset.from_dict({"input_ids": [[3, 4, 5], [6, 7]], "labels": [[3, 4, 5], [6, 7]]})
    packed, collate = space["prepare_data"](rows, AutoTokenizer.from_pretrained(tiny), model, 8)
    assert collate(list(packed))["position_ids"].tolist() == [[0, 1, 2, 0, 1]]


@pytest.mark.parametrize("name", ["safe", "cpu", "activation_checkpointing(2)"])
def test_the_python_lines_of_a_loop_run(name: str, tiny: Path) -> None:
    """The lines for a hand-written loop build an Accelerator, prepare a model and make its optimizer."""
    from transformers import AutoModelForCausalLM

    space: dict[str, Any] = {}
    exec(emit(make_plan(name), "python", Options(door="accelerate")), space)
    model = space["prepare_model"](AutoModelForCausalLM.from_pretrained(tiny, **space["model_keywords"]))
    assert model.is_activation_checkpointing == name.startswith("activation")
    assert space["make_optimizer"](model, lr=1e-3).param_groups[0]["lr"] == 1e-3
    assert space["accelerator"].num_processes == 1


@pytest.mark.parametrize("target", ["training-args", "python"])
def test_an_open_accumulation_is_not_guessed(target: str) -> None:
    """A file that must name the accumulation waits for the number of processes."""
    plan = make_plan("batch_size(4, effective=64)")
    with pytest.raises(ValueError, match="add --processes N"):
        emit(plan, target)
    assert "gradient_accumulation_steps" in emit(plan, target, Options(processes=2))


def test_the_preset_for_a_cpu_needs_nothing_added_on_a_cpu(tmp_path: Path) -> None:
    """What is emitted for `cpu` is accepted here as it is, bf16 included."""
    from transformers import HfArgumentParser, TrainingArguments

    fields = json.loads(emit(make_plan("cpu", machine=GPU), "training-args"))
    (args,) = HfArgumentParser(TrainingArguments).parse_dict(fields | {"output_dir": str(tmp_path)})
    assert (args.use_cpu, args.bf16) == (True, True)


def test_the_python_lines_of_a_loop_clip_and_update_as_the_plan_says(tiny: Path) -> None:
    """The lines clip at the plan's limit and make the plan's optimizer."""
    import torch
    from transformers import AutoModelForCausalLM

    space: dict[str, Any] = {}
    exec(emit(make_plan("adafactor", "gradient_clipping(0.5)"), "python", Options(door="accelerate")), space)
    model = AutoModelForCausalLM.from_pretrained(tiny)
    assert type(space["make_optimizer"](model, lr=1e-3)).__name__ == "Adafactor"
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    space["clip"](model)
    norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm().item()
    assert norm == pytest.approx(0.5, rel=1e-4)


def test_a_launch_file_of_a_compiled_plan_names_the_backend() -> None:
    """torch.compile is in the YAML too, for scripts that know nothing of the plan; no run is sent to the CPU."""
    config = yaml.safe_load(emit(make_plan("compile('aot_eager', 'default')"), "accelerate"))
    assert config["dynamo_config"] == {"dynamo_backend": "aot_eager", "dynamo_mode": "default"}
    assert config["use_cpu"] is False
    offload = yaml.safe_load(emit(make_plan("zero(3, 'all')"), "accelerate"))["deepspeed_config"]
    assert (offload["offload_optimizer_device"], offload["offload_param_device"]) == ("cpu", "cpu")


def test_an_unknown_target_gets_the_nearest_name() -> None:
    """A misspelled target is told the right one."""
    with pytest.raises(ValueError, match="did you mean training-args"):
        emit(make_plan("safe"), "traning-args")


def test_the_silence_of_sft_is_what_trl_turns_on() -> None:
    """What we write out for SFTConfig without asking TRL is what the installed TRL needs."""
    from trl import SFTConfig

    from hf_efficient.emit.trainer import _silence

    assert _silence(SFTConfig) == SFT_SILENCE


def test_generated_files_are_up_to_date() -> None:
    """What is committed is what the code makes: otherwise run `make generate`."""
    stale = [str(path.relative_to(ROOT)) for path, text in generated().items() if path.read_text() != text]
    assert not stale
    stages = {"zero1", "zero2", "zero2_offload", "zero3", "zero3_offload", "zero3_offload_params"}
    assert {path.stem for path in (ROOT / "deepspeed_configs").glob("*.json")} == stages


def test_a_launch_file_names_the_zero_keys_inline() -> None:
    """The YAML of zero3_offload carries stage, offload and initialisation itself, and no path to a JSON."""
    config = yaml.safe_load(emit(make_plan("zero3_offload"), "accelerate"))["deepspeed_config"]
    assert config == {"zero_stage": 3, "offload_optimizer_device": "cpu", "zero3_init_flag": True,
                      "zero3_save_16bit_model": True}  # fmt: skip


def test_a_copy_never_overwrites_other_content(tmp_path: Path) -> None:
    """Copying twice is fine; a file that differs is left alone and named."""
    path = copy("configs", "zero2.json", tmp_path / "new" / "folder")
    assert copy("configs", "zero2", path.parent) == path
    path.write_text("mine")
    with pytest.raises(ValueError, match="is there already and differs"):
        copy("configs", "zero2", path.parent)
    assert path.read_text() == "mine"


def test_recipes_and_configs_are_shipped_with_a_line_about_each() -> None:
    """Every shipped file is listed with its first line."""
    assert set(shipped("recipes")) >= {"causal_lm", "accelerate_loop"}
    assert all(file.doc for kind in ("recipes", "configs") for file in shipped(kind).values())  # type: ignore[arg-type]


def test_a_link_and_a_pipe_stay_what_they_are(tmp_path: Path) -> None:
    """Writing through a link writes its file; a device or pipe is written to and not exchanged for a file."""
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit((tmp_path / "pipe").read_text)
        write(tmp_path / "pipe", "text")
        assert read.result(timeout=10) == "text"
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    """A folder in the way, or a missing one, is one sentence; no temporary file stays."""
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "missing" / "file.json"):
        with pytest.raises(ValueError, match="Cannot write"):
            write(path, "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
