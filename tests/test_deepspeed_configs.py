"""Every DeepSpeed file: its page, what DeepSpeed's own classes make of it, and the launch file of the same plan."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from hf_efficient import make_plan
from hf_efficient.checks import deepspeed_keys as keys
from hf_efficient.deepspeed_page import FILES, MEASURED, configs, page
from hf_efficient.doctor.report import examine_files
from hf_efficient.emit.deepspeed import deepspeed_json
from hf_efficient.emit.deepspeed_reasons import REASONS
from hf_efficient.emit.launch import launch_config
from hf_efficient.emit.targets import Options, emit
from hf_efficient.plan import flatten
from hf_efficient.presets import PRESETS
from hf_efficient.shipped import copy as copied
from hf_efficient.tricks import catalogue

ROOT = Path(__file__).parents[1]
SHIPPED = sorted((ROOT / "deepspeed_configs").glob("*.json"))
FILES_AND_DISK = configs()
ALWAYS = {"gradient_clipping", "gradient_accumulation_steps", "bf16", "fp16", "zero_optimization"}


def faults(config: Mapping[str, Any]) -> list[str]:
    """Return what the installed DeepSpeed does not know, deprecates or has removed, at any level of a file."""
    from deepspeed.runtime import config as installed
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    blocks = {"zero_optimization": DeepSpeedZeroConfig, "bf16": DeepSpeedBF16Config, "fp16": DeepSpeedFP16Config}
    removed = set(installed._REMOVED_TOP_LEVEL_CONFIG_KEYS) | {"optimizer", "scheduler"}  # ours have neither
    found = [f"{key}: not at the top" for key in config if key not in keys.TOP or key in removed]
    for name, block in blocks.items():
        found += _faults_inside(block, config.get(name, {}), f"{name}.")
    return found


def _faults_inside(block: Any, config: Mapping[str, Any], prefix: str) -> Iterator[str]:
    known = {field.alias or name: field for name, field in block.model_fields.items()}
    for key, value in config.items():
        if key not in known:
            yield f"{prefix}{key}: unknown"
            continue
        if (known[key].json_schema_extra or {}).get("deprecated"):
            yield f"{prefix}{key}: deprecated"
        if isinstance(value, Mapping):
            (inner,) = (kind for kind in get_args(known[key].annotation) if hasattr(kind, "model_fields"))
            yield from _faults_inside(inner, value, f"{prefix}{key}.")


def test_every_key_of_a_file_has_a_row_and_every_row_a_key() -> None:
    """The keys of the committed files, and of the one for a disk, are those of the page, each once."""
    texts = [path.read_text() for path in SHIPPED] + [deepspeed_json(_on_disk())]
    there = {key for text in texts for key, _ in flatten(json.loads(text))}
    assert there == set(REASONS)
    lines = (ROOT / "deepspeed_configs" / "README.md").read_text().splitlines()
    assert {key: sum(line.startswith(f"| `{key}` |") for line in lines) for key in there} == dict.fromkeys(there, 1)


def test_the_page_names_every_file() -> None:
    """Each file that can be copied has a row with when to take it, and one for each model in the memory table."""
    table = page(json.loads(MEASURED.read_text()))
    assert {path.stem for path in SHIPPED} == set(FILES)
    for name, config in FILES_AND_DISK.items():
        assert f"| `{name}` |" in table
        assert ("offload_optimizer" in config["zero_optimization"]) == ("offload" in name or "nvme" in name)


@pytest.mark.parametrize("name", FILES_AND_DISK)
def test_deepspeed_knows_every_key(name: str) -> None:
    """Nothing unknown, deprecated or removed at any level; the keys that must be there are."""
    assert not faults(FILES_AND_DISK[name])
    assert set(FILES_AND_DISK[name]) >= ALWAYS


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        ((), "zero_optimisation", {}),
        ((), "amp", {"enabled": True}),
        ((), "optimizer", {"type": "AdamW"}),
        (("zero_optimization",), "cpu_offload", True),
        (("zero_optimization",), "stage3_gather_fp16_weights_on_model_save", True),
        (("zero_optimization",), "mics_shard_size", 2),
        (("zero_optimization", "offload_optimizer"), "pinned", True),
        (("bf16",), "loss_scale", 1),
    ],
)
def test_a_wrong_key_is_seen(place: tuple[str, ...], key: str, value: Any) -> None:
    """One unknown, deprecated or removed key, at the top or inside, is one fault."""
    config = copy.deepcopy(FILES_AND_DISK["zero3_offload"])
    inside = config
    for step in place:
        inside = inside[step]
    inside[key] = value
    assert [fault.split(":")[0] for fault in faults(config)] == [".".join((*place, key))]


def test_the_defaults_that_the_page_names_are_deepspeeds() -> None:
    """Contiguous gradients and pinned memory are on, overlap in stage 3 only, both buckets are of 500 million."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    made = [DeepSpeedZeroConfig(stage=stage, offload_optimizer={}, offload_param={}) for stage in (1, 2, 3)]
    assert [zero.overlap_comm for zero in made] == [False, False, True]
    for zero in made:
        assert zero.contiguous_gradients
        assert zero.offload_optimizer.pin_memory
        assert zero.offload_param.pin_memory
        assert (zero.reduce_bucket_size, zero.allgather_bucket_size) == (500_000_000, 500_000_000)
    assert DeepSpeedZeroConfig(allgather_bucket_size="auto").allgather_bucket_size == 500_000_000


def test_what_presets_emit_are_the_files() -> None:
    """`emit deepspeed` of every preset that can is the committed file of its name; the others say that they cannot."""
    made = {}
    for name in PRESETS:
        try:
            made[name] = emit(make_plan(name), "deepspeed", Options(file=f"{name}.json"))
        except ValueError:
            continue
    assert made == {path.stem: path.read_text() for path in SHIPPED}


@pytest.mark.parametrize("name", FILES_AND_DISK)
def test_the_doctor_finds_nothing(name: str, tmp_path: Path) -> None:
    """No error, no warning and no information in a copy; without its folder the file for a disk is an error."""
    disk = name not in FILES
    path = copied("configs", name, tmp_path, nvme_path=str(tmp_path) if disk else None)
    assert [(found.code, found.what) for found in examine_files([path]).findings] == []
    if disk:
        config = json.loads(path.read_text())
        del config["zero_optimization"]["offload_param"]["nvme_path"]
        path.write_text(json.dumps(config))
        assert "error" in [found.level for found in examine_files([path]).findings]


def _variants() -> dict[str, Any]:
    """Return every plan that `zero` makes, but for those on a disk, which no launch file can name."""
    zero = catalogue()["zero"]
    asked = [(stage, offload) for stage, offload in product((1, 2, 3), (None, "optimizer", "all"))]
    tricks = [zero(stage, offload=offload) for stage, offload in asked if offload != "all" or stage == 3]
    return {trick.name: make_plan(trick) for trick in tricks}


@pytest.mark.parametrize(("name", "plan"), _variants().items())
def test_launch_file_and_json_say_the_same(
    name: str, plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accelerate's launcher and plugin make of the YAML the stage, devices and saving of the JSON."""
    file = tmp_path / "launch.yaml"
    file.write_text(yaml.safe_dump(launch_config(plan, 2)))
    plugin = _as_launched(file, monkeypatch)
    launched, ours = plugin.deepspeed_config["zero_optimization"], json.loads(deepspeed_json(plan))["zero_optimization"]
    assert launched["stage"] == ours["stage"]
    for key in ("offload_optimizer", "offload_param"):
        assert launched[key]["device"] == ours.get(key, {}).get("device", "none")
    saving = "stage3_gather_16bit_weights_on_model_save"
    assert launched[saving] == ours.get(saving, False)
    assert plugin.zero3_init_flag == (ours["stage"] == 3)


def _as_launched(file: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the plugin of a script that accelerate launches with `file`, by accelerate's own steps."""
    from accelerate import DeepSpeedPlugin
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    args = launch_command_parser().parse_args(["--config_file", str(file), "train.py"])
    args, defaults, _ = _validate_launch_command(args)
    args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)  # as launch_command does
    _, environment = prepare_deepspeed_cmd_env(args)
    for name, value in environment.items():
        if name.startswith("ACCELERATE_"):
            monkeypatch.setenv(name, value)
    return DeepSpeedPlugin()


def _on_disk() -> Any:
    return make_plan(catalogue()["zero"](3, offload="all", nvme_path="/local_nvme"))
