"""Files are recognised by what is in them, say what their own readers would read, and never raise."""

from __future__ import annotations

import json
import math
import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_efficient.finding import Place
from hf_efficient.reading.encoding import LIMIT
from hf_efficient.reading.files import read
from hf_efficient.reading.pages import PAGES
from hf_efficient.reading.parts import Command, Part
from hf_efficient.reading.settings import UNKNOWN


def _read(folder: Path, name: str, content: str | bytes) -> Part:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (part,) = read(path)
    assert all(finding.code in PAGES for finding in part.findings)
    return part


def _commands(folder: Path, text: str) -> tuple[Command, ...]:
    return _read(folder, "run.sh", text).commands


KINDS = {
    "script": ["import torch\nmodel.half()\n", "#!/usr/bin/env python3\nprint(1)\n"],
    "shell": ["torchrun --nproc_per_node 4 t.py\n", "#!/bin/sh\nls\n", "Run it:\n\n    $ accelerate launch t.py\n"],
    "launch": [
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n",
        "compute_environment: LOCAL_MACHINE\nnum_processes: 2\nmixd_precision: bf16\n",
        '{"distributed_type": "MULTI_GPU", "num_processes": 8}',
    ],
    "deepspeed": [
        '{"zero_optimization": {"stage": 2}}',
        '{"zero_optimisation": {"stage": 2}, "fp16": {"enabled": true}}',
        '{"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}, "unknown": 1}',
        '{"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "scheduler": {"type": "WarmupLR"}}',
    ],
    "setup": [
        "machine: {gpu: T4}\n",
        '{"trainer": {"bf16": true}, "model": {"name": "gpt2"}}',
        "optimizer: {class: Adafactor}\n",
    ],
    "config": ['{"model_type": "bert", "hidden_size": 768}', '{"architectures": ["GPT2LMHeadModel"], "n_embd": 8}'],
    "arguments": [
        "learning_rate: 1.0e-4\nper_device_train_batch_size: 4\n",
        '{"model_name_or_path": "gpt2", "bf16": true, "my_own": 3, "deepspeed": "ds.json"}',
        "evaluation_strategy: steps\nno_cuda: true\nlogging_dir: x\n",
    ],
    "unreadable": ["just words\n", "a: 1\nb: 2\n", "[x]\ndeepspeed = [1,]\n", "model: {a: x}\ntraining: {lr: 1}\n"],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in KINDS.items() for text in texts])
def test_a_file_is_known_by_its_content(kind: str, text: str, tmp_path: Path) -> None:
    """A name that says nothing changes nothing."""
    assert _read(tmp_path, "something", text).kind == kind


@pytest.mark.parametrize(
    ("name", "content", "level", "told"),
    [
        ("a.yaml", "a: [1, 2\nb: 3\n", "error", r"line 2"),
        ("a.yaml", "a:\n\tb: 1\n", "error", r"tab"),
        ("a.yaml", "a: &a [*a]\n", "error", r"contains itself"),
        ("a.yaml", "a: !!int x\n", "error", r"not YAML"),
        ("a.yaml", "# only\n", "error", r"comments"),
        ("a.json", '{"a": 1, // x\n}', "error", r"comments"),
        ("a.json", '{"a": 1,\n}', "error", r"comma"),
        ("a.json", "{'a': True}", "error", r"single quotes"),
        ("a.json", '{"a"', "error", r"line 1"),
        ("a.json", "train_batch_size: 4\n", "error", r"named .json and holds YAML"),
        ("a.py", "x = 1\ndef f(:\n", "error", r"line 2"),
        ("a.py", "x = " + "-" * 50_000 + "1", "error", r"too deeply"),
        ("a.json", "[" * 100_000, "error", r"too deeply"),
        ("a.yaml", "[" * 100_000, "error", r"too deeply"),
        ("a.py", "", "error", r"empty"),
        ("a.bin", b"\x80\x02}\x00\x01", "error", r"not text"),
        ("a.json", '{"a": ' + "9" * 5000 + "}", "error", r"not JSON"),
        ("a.json", '{"log_history": [], "global_step": 3}', "info", r"Trainer"),
        ("a.json", "[1, 2]", "info", r"no mapping"),
        ("a.txt", "nothing here", "info", r"not recognised"),
    ],
)
def test_what_cannot_be_read_is_a_finding(
    name: str, content: str | bytes, level: str, told: str, tmp_path: Path
) -> None:
    """One finding says what, where and what to do."""
    part = _read(tmp_path, name, content)
    (finding,) = part.findings
    assert (part.kind, finding.code, finding.level) == ("unreadable", "unreadable", level)
    assert re.search(told, finding.what)
    assert finding.fix
    assert finding.where.file == str(tmp_path / name)


def test_aliases_that_explode_are_refused(tmp_path: Path) -> None:
    """A few lines that stand for millions of values are not read out."""
    rows = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10 if i else ['x'] * 10)}]" for i in range(8)]
    assert "expands" in _read(tmp_path, "a.yaml", "\n".join(rows)).findings[0].what


def test_large_strange_and_unreachable_files_are_told(tmp_path: Path) -> None:
    """Five MiB at most; a device, a broken link and a forbidden file are findings."""
    large = tmp_path / "large.json"
    with large.open("wb") as stream:
        stream.truncate(LIMIT + 1)
    assert "too large" in read(large)[0].findings[0].what
    link = tmp_path / "link.yaml"
    link.symlink_to(tmp_path / "nowhere")
    assert "symbolic link" in read(link)[0].findings[0].what
    assert "regular" in read(Path(os.devnull))[0].findings[0].what
    forbidden = tmp_path / "forbidden.yaml"
    forbidden.write_text("a: 1")
    forbidden.chmod(0)
    if not os.access(forbidden, os.R_OK):
        assert "could not be opened" in read(forbidden)[0].findings[0].what


@pytest.mark.parametrize(
    ("encoding", "codes"),
    [("utf-8", []), ("utf-8-sig", []), ("utf-16", ["other-encoding"]), ("latin-1", ["other-encoding"])],
)
def test_other_encodings_are_read_and_told(encoding: str, codes: list[str], tmp_path: Path) -> None:
    """What others cannot read is read here, with a warning."""
    part = _read(tmp_path, "a.yaml", "machine:\n  gpu: T4  # é\n".encode(encoding))
    assert part.kind == "setup"
    assert [finding.code for finding in part.findings] == codes
    assert not _read(tmp_path, "a.py", "# coding: latin-1\nx = 'é'\n".encode("latin-1")).findings
    assert _read(tmp_path, "b.json", '{"model_type": "bert"}'.encode("utf-8-sig")).findings[0].code == "other-encoding"


def test_values_are_those_of_the_readers(tmp_path: Path) -> None:
    """1e-5 is a string in YAML and a number in JSON; NaN is a number; keys are strings."""
    text = "learning_rate: 1e-5\nbf16: yes\nweight_decay: 0.1\nlr_scheduler_kwargs: {1: a}\n"
    settings = _read(tmp_path, "a.yaml", text).settings
    assert settings.values["learning_rate"] == yaml.safe_load(text)["learning_rate"] == "1e-5"
    assert settings.values["bf16"] is True
    assert settings.values["lr_scheduler_kwargs"] == {"1": "a"}
    settings = _read(tmp_path, "a.json", '{"learning_rate": 1e-5, "max_grad_norm": NaN}').settings
    assert settings.values["learning_rate"] == 1e-5
    assert math.isnan(settings.values["max_grad_norm"])


@pytest.mark.parametrize("style", ["json", "yaml"])
def test_every_key_has_its_line(style: str, tmp_path: Path) -> None:
    """The same name in other blocks is told apart; keys inside lists have no path."""
    rows = {
        "json": '{\n "fp16": {\n  "enabled": true\n },\n "x": [{"enabled": 1}],\n'
        ' "bf16":\n {"enabled": false,\n "y": {"z": "}"}}\n}',
        "yaml": "fp16:\n  # enabled\n  enabled: true\n\nx: [{enabled: 1}]\nbf16: {enabled: false,\n  y:\n    {z: 1}}\n",
    }  # fmt: skip
    part = _read(tmp_path, f"a.{style}", rows[style])
    lines = {path: place.line for path, place in part.settings.places.items()}
    want: dict[str, Any] = {
        "json": {"fp16": 2, "fp16.enabled": 3, "x": 5, "bf16": 6, "bf16.enabled": 7, "bf16.y": 8, "bf16.y.z": 8},
        "yaml": {"fp16": 1, "fp16.enabled": 3, "x": 5, "bf16": 6, "bf16.enabled": 6, "bf16.y": 7, "bf16.y.z": 8},
    }
    assert lines == want[style]


def test_merged_keys_stand_where_they_are_written(tmp_path: Path) -> None:
    """What `<<` brings in has the line of the anchor; what stands beside it wins."""
    text = "trainer: &t\n  bf16: true\n  seed: 1\nsft:\n  <<: *t\n  seed: 2\n"
    setup = _read(tmp_path, "a.yaml", text).setup
    assert setup is not None
    assert setup.sft is not None
    assert setup.sft.values["seed"] == 2
    assert (setup.sft.where("bf16").line, setup.sft.where("seed").line) == (2, 6)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [("a.yaml", "bf16: true\nseed: 1\nbf16: false\n", 3), ("a.json", '{"bf16": true, "seed": 1,\n"bf16": false}', 2)],
)
def test_a_key_twice_is_told_and_the_last_counts(name: str, text: str, line: int, tmp_path: Path) -> None:
    """The reader says nothing; the finding stands at the last."""
    part = _read(tmp_path, name, text)
    assert part.settings.values["bf16"] is False
    assert [(found.code, found.level, found.where.line) for found in part.findings] == [
        ("duplicate-key", "warning", line)
    ]


def test_a_misspelled_key_of_a_setup_is_told_and_the_rest_counts(tmp_path: Path) -> None:
    """So is a subject that is no mapping, and a script that is no Python."""
    text = "trainr: {bf16: true}\nmachine: {gpu: T4}\nmodel: gpt2\nenv:\nscript: 'def ('\n"
    part = _read(tmp_path, "a.yaml", text)
    assert part.setup is not None
    assert part.setup.machine is not None
    assert part.setup.model is part.setup.env is part.setup.script is None
    assert [(found.level, found.where.line) for found in part.findings] == [("error", 1), ("error", 3), ("error", 5)]
    assert "trainer" in part.findings[0].fix


def test_a_deepspeed_file_in_yaml_is_told(tmp_path: Path) -> None:
    """It is read with json.load."""
    part = _read(tmp_path, "ds.yaml", "zero_optimization: {stage: 3}\ngradient_clipping: 1.0\n")
    assert (part.kind, part.findings[0].code, part.findings[0].level) == ("deepspeed", "deepspeed-file-is-yaml", "info")


def test_an_accelerate_command_is_read_whole(tmp_path: Path) -> None:
    """Its options under the keys of the YAML, its script's typed, its variables put in."""
    (command,) = _commands(
        tmp_path,
        "#!/bin/bash\nexport TOKENIZERS_PARALLELISM=false\nN=4\nOPTS='--bf16 --learning_rate 2e-5'\n"
        'MORE=(--max_steps -1)\nMORE+=(--report_to wandb tensorboard)\ncat > x <<"END"\npython nothing.py\nEND\n'
        "CUDA_VISIBLE_DEVICES=0,1 nohup accelerate launch --config_file $HERE/zero3.yaml --num-processes=${N} \\\n"
        "  --use_deepspeed --zero_stage 3 --offload_optimizer_device cpu --mixed_precision bf16 --gpu_ids 0 \\\n"
        '  --dynamo_backend no train.py $OPTS "${MORE[@]}" --output_dir "$OUT/x" --no_average_tokens_across_devices'
        """ \\\n --fsdp_config '{"version": 2}' --seed=7 --bf16_full_eval no > log.txt 2>&1 & # done\n""",
    )
    assert command.launcher == "accelerate"
    assert command.script == "train.py"
    assert command.processes == 4
    assert command.config_file == "$HERE/zero3.yaml"
    assert command.launch.values == {
        "num_processes": 4, "distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "gpu_ids": "0",
        "deepspeed_config": {"zero_stage": 3, "offload_optimizer_device": "cpu"},
    }  # fmt: skip
    assert command.env.values == {"TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "0,1"}
    arguments = dict(command.arguments.values)
    assert arguments.pop("output_dir") is UNKNOWN
    assert arguments == {
        "bf16": True, "learning_rate": 2e-5, "max_steps": -1, "report_to": ["wandb", "tensorboard"],
        "average_tokens_across_devices": False, "fsdp_config": {"version": 2}, "seed": 7, "bf16_full_eval": False,
    }  # fmt: skip
    file = str(tmp_path / "run.sh")
    assert command.place == Place(file, 10)
    assert command.launch.where("deepspeed_config.zero_stage") == Place(file, 11)
    assert command.arguments.where("seed") == Place(file, 13)
    assert command.env.where("TOKENIZERS_PARALLELISM") == Place(file, 2)


@pytest.mark.parametrize(
    ("text", "launcher", "script", "processes"),
    [
        ("torchrun --nproc_per_node 4 --nnodes=2 train.py", "torchrun", "train.py", 8),
        ("torchrun --standalone --nproc-per-node=gpu train.py", "torchrun", "train.py", None),
        ("torchrun --nnodes 1:4 --nproc_per_node 2 train.py", "torchrun", "train.py", None),
        ("torchrun train.py", "torchrun", "train.py", 1),
        ("python3.11 -u -m torch.distributed.run --nproc_per_node ${N:-2} -m pkg.train", "torchrun", "pkg.train", 2),
        ("python -m torch.distributed.launch --use_env --nproc_per_node=$N train.py", "torchrun", "train.py", None),
        ("deepspeed --num_gpus 2 --num_nodes 3 train.py", "deepspeed", "train.py", 6),
        ("deepspeed --include localhost:0,1@b:3 train.py", "deepspeed", "train.py", 3),
        ("deepspeed --include worker train.py", "deepspeed", "train.py", None),
        ("CUDA_VISIBLE_DEVICES=0,2 deepspeed train.py", "deepspeed", "train.py", 2),
        ("deepspeed --hostfile hosts --num_gpus 8 train.py", "deepspeed", "train.py", None),
        ("python train.py", "python", "train.py", 1),
        ("env A=1 /usr/bin/python -W ignore -O dir/train.py", "python", "dir/train.py", 1),
        ("srun --ntasks=4 python train.py", "python", "train.py", None),
        ("srun --nodes=2 accelerate launch --num_processes 16 train.py", "accelerate", "train.py", 16),
        ("time uv run accelerate-launch train.py", "accelerate", "train.py", None),
        ("accelerate launch -m pkg.train --num_processes 4", "accelerate", "pkg.train", None),
        ("accelerate launch --module --num_processes $N pkg.train", "accelerate", "pkg.train", None),
        ('bash_unused=1; if true; then python "$DIR/train.py"; fi', "python", "$DIR/train.py", 1),
        ("trl sft --num_processes 2 --model_name_or_path gpt2", "accelerate", "trl sft", 2),
    ],
)
def test_launchers_and_their_processes(
    text: str, launcher: str, script: str, processes: int | None, tmp_path: Path
) -> None:
    """What the command says of processes, on all nodes together; None where something else decides."""
    (command,) = _commands(tmp_path, text)
    assert (command.launcher, command.script, command.processes) == (launcher, script, processes)


@pytest.mark.parametrize(
    "text",
    [
        "pip install torch && cd x; mkdir -p out",
        "python -m pip install -U trl",
        "python -c 'import torch'",
        "python --version | tee x",
        "echo accelerate launch train.py",
        "# python train.py",
        "accelerate config default",
        "accelerate launch --help",
        "cat <<-EOF\n\tpython train.py\n\tEOF",
        "X=$(python count.py)",
        "'unclosed python train.py",
    ],
)
def test_what_starts_no_training_is_no_command(text: str, tmp_path: Path) -> None:
    """Installing, printing, comments and here-documents are passed over."""
    part = _read(tmp_path, "run.sh", text)
    assert (part.kind, part.commands, part.findings) == ("shell", (), ())


def test_variables_that_may_change_are_unknown(tmp_path: Path) -> None:
    """Set under a condition, in a loop, from outside or by another program."""
    text = "N=2\nif $Q; then N=8; fi\nfor i in 1; do\ntorchrun --nproc_per_node $N t.py --seed $i --a $(x) $@\ndone"
    (command,) = _commands(tmp_path, text)
    assert command.processes is None
    assert all(value is UNKNOWN for value in command.arguments.values.values())
    assert command.arguments.open
    assert not _commands(tmp_path, "python t.py --output_dir $OUT --bf16")[0].arguments.open
    assert _commands(tmp_path, "python t.py --bf16 $MORE")[0].arguments.open


def test_files_that_a_command_names(tmp_path: Path) -> None:
    """A lone JSON or YAML, TRL's --config, DeepSpeed's file through any door; TRL's shipped files by name."""
    rows = {
        "python train.py args.json": ("args.json",),
        "trl sft --config sft.yaml": ("sft.yaml",),
        "deepspeed t.py --deepspeed --deepspeed_config $D/ds.json": (),
        "torchrun t.py --deepspeed ds.json": ("ds.json",),
        "accelerate launch --use_deepspeed --deepspeed_config_file ds.json t.py": ("ds.json",),
    }
    for text, files in rows.items():
        assert _commands(tmp_path, text)[0].files == files
    (command,) = _commands(tmp_path, "trl dpo --accelerate_config zero2 --gradient_accumulation_steps 4")
    assert command.config_file.endswith("zero2.yaml")
    assert command.arguments.values == {"gradient_accumulation_steps": 4}


def test_options_without_their_engine_are_told(tmp_path: Path) -> None:
    """Not where a file may turn it on."""
    part = _read(tmp_path, "run.sh", "accelerate launch --zero_stage 3 --num_processes 2 train.py\n")
    assert [(found.code, found.level) for found in part.findings] == [("launch-option-ignored", "info")]
    assert part.commands[0].launch.values == {"num_processes": 2}
    assert not _read(tmp_path, "run.sh", "accelerate launch --config_file a.yaml --zero_stage 3 t.py\n").findings


def test_exports_of_a_script_without_commands(tmp_path: Path) -> None:
    """They are the settings of the part."""
    part = _read(tmp_path, "env.sh", "export NCCL_P2P_DISABLE=1\nA=2\nexport A\nB=3\n")
    assert part.settings.values == {"NCCL_P2P_DISABLE": "1", "A": "2"}


def test_windows_line_ends_of_a_shell_script(tmp_path: Path) -> None:
    """bash stumbles over them, so they are told; the values are right all the same."""
    part = _read(tmp_path, "run.sh", "torchrun \\\r\n --nproc_per_node 2 t.py --bf16 True\r\n")
    assert part.findings[0].code == "windows-line-ends"
    assert part.commands[0].arguments.values == {"bf16": True}


def _safetensors(keys: dict[str, str], size: int = 0) -> bytes:
    header = json.dumps({key: {"dtype": dtype, "shape": [0], "data_offsets": [0, size]} for key, dtype in keys.items()})
    return struct.pack("<Q", len(header)) + header.encode()


def test_a_checkpoint_says_what_it_holds(tmp_path: Path) -> None:
    """State, optimizer, prefixes and dtypes of the weights, ranks; nothing is unpickled."""
    (tmp_path / "trainer_state.json").write_text('{"global_step": 5, "log_history": []}')
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(
        _safetensors({"model.x._orig_mod.weight": "BF16", "lm_head.weight": "F32"})
    )
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_3.pth", "training_args.bin", "latest"):
        (tmp_path / name).write_bytes(b"global_step5")
    (tmp_path / "global_step5").mkdir()
    for rank in range(2):
        (tmp_path / "global_step5" / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(b"")
    (part,) = read(tmp_path)
    assert (part.kind, part.findings) == ("checkpoint", ())
    values = part.settings.values
    assert values["state"]["global_step"] == 5
    assert values["config"] == {"model_type": "llama"}
    assert values["optimizer"] == ["optimizer.pt"]
    assert values["scheduler"] == ["scheduler.pt"]
    assert values["rng"] == {"files": 2, "ranks": 4}
    assert values["prefixes"] == ["_orig_mod."]
    assert values["dtypes"] == ["BF16", "F32"]
    assert values["zero"]["ranks"] == 2
    assert values["zero"]["latest"] == "global_step5"
    assert values["zero"]["parameters_sharded"] is False
    assert "scaler" not in values


def test_folders_that_are_no_checkpoint(tmp_path: Path) -> None:
    """A model is a config; a run's folder names its last checkpoint; a project's asks for files."""
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "model.safetensors").write_bytes(_safetensors({"wte.weight": "F32"}))
    assert read(tmp_path)[0].kind == "config"
    run = tmp_path / "run"
    for step in ("checkpoint-20", "checkpoint-100"):
        (run / step).mkdir(parents=True)
    assert "checkpoint-100" in read(run)[0].findings[0].fix
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("")
    assert "train.py" in read(project)[0].findings[0].fix


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00" * 7, struct.pack("<Q", 2**60) + b"{}", struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 3) + b"{]}",
     _safetensors({"a": "F32"}, size=100)],
)  # fmt: skip
def test_damaged_weights_are_told(content: bytes, tmp_path: Path) -> None:
    """The header is checked against the file before anything is read."""
    (tmp_path / "model.safetensors").write_bytes(content)
    (tmp_path / "trainer_state.json").write_text('{"global_step": "')
    (tmp_path / "optimizer.pt").write_bytes(b"")
    (part,) = read(tmp_path)
    assert part.kind == "checkpoint"
    assert [found.code for found in part.findings] == ["unreadable", "unreadable"]
