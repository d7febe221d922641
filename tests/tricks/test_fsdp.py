"""FSDP2 shards, checkpoints and trains as the plan says; launched, this file is the script.

On a CPU the stack puts plain data parallelism in FSDP's place; engines.py makes it real over gloo.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from doors import DOORS, LAUNCHED_DOORS, REFUSE, load, train
from engines import call_the_cpus_gpus
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

import hf_efficient as hf
from hf_efficient import Machine, make_plan
from hf_efficient.emit import launcher
from hf_efficient.emit.accelerator import accelerator_keywords
from hf_efficient.emit.fields import argument_fields
from hf_efficient.emit.launch import launch_config
from hf_efficient.emit.targets import Options, emit
from hf_efficient.plan import Conflict
from hf_efficient.train.save import save_model

VARIANTS = ["fsdp(False)", "fsdp(offload=True)"]

ROOT = Path(__file__).parents[2]
GPU = Machine.named("A100-80GB")

NAMES = ("batch_size(4)", "gradient_accumulation(2)", "gradient_clipping(0.25)")
OWN = {"activation_checkpointing": True, "activation_checkpointing_offload": False}


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let our needs and the launcher's be met; what is built is never run."""
    from hf_efficient.emit import loop, trainer

    monkeypatch.setattr(launcher, "launched", lambda: True)
    monkeypatch.setattr(trainer, "training_machine", lambda: GPU)
    monkeypatch.setattr(loop, "training_machine", lambda: GPU)
    monkeypatch.setattr(trainer, "without_accelerator", lambda machine: machine)


@pytest.mark.usefixtures("ampere")
@pytest.mark.parametrize(("name", "reshard", "offload"), [("fsdp", True, False), ("fsdp(False, True)", False, True)])
def test_transformers_and_accelerate_read_the_settings(name: str, reshard: bool, offload: bool, tmp_path: Path) -> None:
    """Both doors end in an FSDP2 plugin with the plan's resharding, offload, wrapping, loading and whole saves."""
    from accelerate.utils import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import CPUOffloadPolicy
    from torch.distributed.fsdp.fully_sharded_data_parallel import StateDictType

    args = hf.training_arguments(make_plan(name, "activation_checkpointing"), output_dir=str(tmp_path), use_cpu=True)
    by_trainer = FullyShardedDataParallelPlugin(**args.fsdp_plugin_args)
    by_loop = accelerator_keywords(make_plan(name, "activation_checkpointing"))["fsdp_plugin"].build()
    for plugin in (by_trainer, by_loop):
        assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, reshard)
        assert isinstance(plugin.cpu_offload, CPUOffloadPolicy) == offload
        assert plugin.auto_wrap_policy.__name__ == "transformer_auto_wrap_policy"
        assert plugin.state_dict_type == StateDictType.FULL_STATE_DICT
        assert (plugin.cpu_ram_efficient_loading, plugin.activation_checkpointing) == (True, True)


def test_the_launch_file_says_the_same() -> None:
    """The YAML chooses FSDP2 for scripts that know nothing of the plan, its own checkpointing included."""
    config = launch_config(make_plan("fsdp(False, True)", "activation_checkpointing"), 2)
    keys = {key.removeprefix("fsdp_"): value for key, value in config["fsdp_config"].items()}
    assert config["distributed_type"] == "FSDP"
    assert (keys["version"], keys["reshard_after_forward"], keys["offload_params"]) == (2, False, True)
    assert OWN.items() <= keys.items()
    assert "fsdp_plugin" not in accelerator_keywords(make_plan("safe"))


@pytest.mark.usefixtures("ampere")
def test_checkpointing_is_fsdps_own_and_keeps_its_author(tiny: Path) -> None:
    """The model's own checkpointing stays off, FSDP's has the trick's name, and no cache grows in a recomputation."""
    from hf_efficient.emit.loop import settle_loop
    from hf_efficient.emit.trainer import settle

    plan = make_plan("fsdp2", machine=GPU)
    settled = settle(plan, yours={"use_cpu": True, "bf16": False})
    assert "activation_checkpointing" not in settled["trainer"]
    for done, target, key in [(settled, "trainer", "fsdp_config"), (settle_loop(plan), "accelerator", "fsdp_plugin")]:
        assert done[target][key]["activation_checkpointing"] is True
        assert done.author(target, f"{key}.activation_checkpointing") == "activation_checkpointing"
    model = hf.prepare_model(plan, load(tiny))
    assert (model.is_activation_checkpointing, model.config.use_cache) == (False, False)
    lines = emit(plan, "python", Options(door="accelerate"))
    assert "model.config.use_cache = False" in lines
    assert "activation_checkpointing_enable" not in lines


@pytest.mark.usefixtures("ampere")
def test_silence_about_checkpointing_means_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A plan without checkpointing has none, whatever another plan's YAML says or SFTConfig does by itself."""
    from accelerate.utils import FullyShardedDataParallelPlugin
    from trl import SFTConfig

    monkeypatch.setenv("FSDP_ACTIVATION_CHECKPOINTING", "true")
    args = hf.training_arguments(make_plan("fsdp"), SFTConfig, output_dir=str(tmp_path), use_cpu=True)
    assert not args.activation_checkpointing
    assert FullyShardedDataParallelPlugin(**args.fsdp_plugin_args).activation_checkpointing == 0
    assert accelerator_keywords(make_plan("fsdp"))["fsdp_plugin"].build().activation_checkpointing is False


@pytest.mark.usefixtures("ampere")
def test_your_config_keeps_the_plans_checkpointing(tmp_path: Path) -> None:
    """An `fsdp_config` of yours replaces the trick's, and is itself left as it was."""
    yours = {"fsdp_min_num_params": 7}
    plan = make_plan("fsdp", "activation_checkpointing")
    args = hf.training_arguments(plan, output_dir=str(tmp_path), use_cpu=True, fsdp_config=yours)
    assert args.fsdp_config["min_num_params"] == 7
    assert (args.fsdp_plugin_args["activation_checkpointing"], yours) == (True, {"fsdp_min_num_params": 7})
    with pytest.raises(ValueError, match="fsdp_config is a file here"):
        hf.training_arguments(plan, output_dir=str(tmp_path), use_cpu=True, fsdp_config="fsdp.json")


@pytest.mark.usefixtures("ampere")
def test_checkpoints_in_host_memory_reach_the_plugin_by_both_doors(tmp_path: Path) -> None:
    """`offload` is a keyword of the plugin; Trainer has no field for it, and the environment tells the plugin."""
    from accelerate.utils import FullyShardedDataParallelPlugin

    plan = make_plan("fsdp", "activation_checkpointing(offload=True)")
    args = hf.training_arguments(plan, output_dir=str(tmp_path), use_cpu=True)
    assert FullyShardedDataParallelPlugin(**args.fsdp_plugin_args).activation_checkpointing_offload == 1
    assert accelerator_keywords(plan)["fsdp_plugin"].build().activation_checkpointing_offload is True
    assert "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD" in emit(plan, "python")


@pytest.mark.parametrize("build", [argument_fields, accelerator_keywords, launch_config])
def test_what_fsdp_cannot_do_is_a_conflict(build: Any) -> None:
    """FSDP treats every layer, and neither adafactor nor bitsandbytes can update a DTensor."""
    with pytest.raises(Conflict, match=r"activation_checkpointing\(2\) asks for every_n_layers=2"):
        build(make_plan("fsdp2", "activation_checkpointing(2)"))
    for name, optimizer in {"adamw_8bit": "adamw_bnb_8bit", "adafactor": "adafactor"}.items():
        if build is not launch_config:
            with pytest.raises(Conflict, match=f"as a DTensor, which {optimizer} cannot update"):
                build(make_plan("fsdp2", name))


@DOORS
def test_it_needs_an_accelerator_and_its_own_launcher(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without launcher, under DeepSpeed's or another FSDP, and on a CPU, one sentence says what to do."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(ValueError, match="accelerate launch --use_fsdp --fsdp_version 2"):
        REFUSE[door](make_plan("fsdp"))
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(ValueError, match=r"fsdp needs an accelerator.*plain data parallelism"):
        REFUSE[door](make_plan("fsdp"))
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(Conflict, match="The launch YAML says fsdp_version: 1, fsdp says 2"):
        REFUSE[door](make_plan("fsdp"))
    with pytest.raises(Conflict, match=r"The launcher chose FSDP, zero takes DEEPSPEED"):
        REFUSE[door](make_plan("zero"))
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(Conflict, match="The launcher chose DEEPSPEED, fsdp takes FSDP"):
        REFUSE[door](make_plan("fsdp"))


@pytest.mark.usefixtures("ampere")
def test_a_loop_never_trains_in_another_way_without_a_word() -> None:
    """Accelerate that did not take FSDP, and a plugin of yours beside the plan's, are refused."""
    with pytest.raises(ValueError, match="trains with FSDP, and Accelerate took NO without a word"):
        hf.make_accelerator(make_plan("fsdp"))
    with pytest.raises(ValueError, match="drops DeepSpeed and FSDP"):
        hf.make_accelerator(make_plan("fsdp"), cpu=True)
    with pytest.raises(Conflict, match="you pass another"):
        hf.make_accelerator(make_plan("fsdp"), fsdp_plugin=object())


@LAUNCHED_DOORS
@pytest.mark.launch
def test_two_processes_shard_and_end_where_one_ends(door: str, tiny: Path, rows: list[Any], tmp_path: Path) -> None:
    """Started by its own YAML, weights are DTensors, layers are FSDP's checkpoints, and 3 updates end within 1e-5."""
    plan = make_plan(*NAMES, "fsdp", "activation_checkpointing")
    (tmp_path / "launch.yaml").write_text(emit(plan, "accelerate", Options(processes=2)))
    torch.save(rows, tmp_path / "rows.pt")
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "ACCELERATE_USE_CPU": "true"}
    launch = ["-m", "accelerate.commands.launch", "--config_file", str(tmp_path / "launch.yaml")]
    script = ["--main_process_port", "0", __file__, door, str(tiny), str(tmp_path)]
    process = subprocess.run([sys.executable, *launch, *script], env=env, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr[-3000:]
    for rank in range(2):
        seen = json.loads((tmp_path / f"seen{rank}.json").read_text())
        assert seen == {"weights": ["DTensor"], "layers": ["CheckpointWrapper"] * 2, "forwards": [4] * 6}
    plain = train(door, make_plan("batch_size(16)", *NAMES[2:]), load(tiny), rows, updates=3)
    saved = load(tmp_path / "saved")
    for ours, theirs in zip(saved.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-5)


def _launched(door: str, tiny: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    call_the_cpus_gpus()
    plan = make_plan(*NAMES, "fsdp", "activation_checkpointing")
    run = train(door, plan, load(tiny), torch.load(folder / "rows.pt"), updates=3)
    wrappers = [type(part).__name__ for part in run.trained.modules() if isinstance(part, CheckpointWrapper)]
    seen: dict[str, Any] = {"weights": sorted({type(weight).__name__ for weight in run.model.parameters()})}
    seen |= {"layers": [name.removeprefix("FSDP") for name in wrappers], "forwards": run.batches}
    save_model(run.accelerator, run.trained, AutoTokenizer.from_pretrained(tiny), str(folder / "saved"))
    (folder / f"seen{dist.get_rank()}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    _launched(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
