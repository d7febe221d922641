"""Several machines: slurm.sh starts a launcher on each, and two launchers train as one does."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest
from launched import Launched, finish, launch, start

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "recipes" / "launch"
pytestmark = pytest.mark.launch

FAKES = {
    "scontrol": '#!/bin/bash\n[ "$*" = "show hostnames node[01-03]" ] && printf "node01\\nnode02\\nnode03\\n"\n',
    # as srun does: each machine gets the same words and its own SLURM_NODEID
    "srun": '#!/bin/bash\nwhile [[ $1 == -* ]]; do case $1 in *=*) shift;; *) shift 2;; esac; done\n'
    'for rank in 0 1 2; do SLURM_NODEID=$rank "$@" || exit; done\n',
    "accelerate": '#!/usr/bin/env python3\nimport json, os, sys\n'
    'print(json.dumps([sys.argv[1:], os.environ["SRUN_CPUS_PER_TASK"]]))\n',
}  # fmt: skip


def _slurm(tmp_path: Path, words: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run slurm.sh where SLURM's commands and accelerate are fakes."""
    for name, text in FAKES.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables}
    return subprocess.run(
        ["bash", str(FOLDER / "slurm.sh"), *words], env=environment, capture_output=True, text=True, timeout=60
    )


JOB = {"SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "node[01-03]", "SLURM_JOB_ID": "1234567",
       "SLURM_GPUS_ON_NODE": "4", "SLURM_CPUS_PER_TASK": "32"}  # fmt: skip


@pytest.mark.launch
def test_slurm_starts_one_launcher_per_machine(tmp_path: Path) -> None:
    """Each gets the first machine's address, its own rank, 3 x 4 processes, and the script's words as they were."""
    script = ["train.py", "--data", "my notes.jsonl", "--text", 'it\'s $HOME * "quoted"', ""]
    run = _slurm(tmp_path, [str(FOLDER / "two_nodes_zero3.yaml"), *script], **JOB)
    assert run.returncode == 0, run.stderr
    from accelerate.commands.launch import launch_command_parser

    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert [cpus for _, cpus in lines] == ["32"] * 3
    for rank, (words, _) in enumerate(lines):
        args = launch_command_parser().parse_args(words[1:])
        assert words[0] == "launch"
        assert [args.training_script, *args.training_script_args] == script
        assert (args.machine_rank, args.num_machines, args.num_processes) == (rank, 3, 12)
        assert (args.main_process_ip, args.main_process_port) == ("node01", 24567)
        assert args.config_file == str(FOLDER / "two_nodes_zero3.yaml")


@pytest.mark.launch
def test_slurm_says_what_is_missing(tmp_path: Path) -> None:
    """No words: how to use it, with exit code 2. No GPUs in the job: what to add."""
    run = _slurm(tmp_path, [], **JOB)
    assert (run.returncode, run.stderr) == (2, "usage: sbatch slurm.sh FILE.yaml SCRIPT.py [ARGUMENTS]\n")
    run = _slurm(tmp_path, ["two_nodes.yaml", "train.py"], **{**JOB, "SLURM_GPUS_ON_NODE": ""})
    assert run.returncode != 0
    assert "add --gpus-per-node N to sbatch" in run.stderr
    assert not run.stdout


@pytest.fixture
def flags(tiny: Path, tmp_path: Path) -> list[str]:
    """A tiny model, thirty texts, and four updates."""
    data = tmp_path / "notes.jsonl"
    texts = [" ".join(f"w{(number + i) % 100}" for i in range(4 + number)) for number in range(30)]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return [
        "--model", str(tiny), "--data", str(data), "--max_steps", "4", "--learning_rate", "0.01", "--seq-len", "32",
    ]  # fmt: skip


def _free_port() -> int:
    """Return a port that nobody listens on, below those that the system hands out."""
    while True:
        port = random.randint(20_000, 30_000)
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) != 0:
                return port


def _two_launchers(yaml: Path, flags: list[str], folder: Path) -> list[Launched]:
    """Start a launcher for each machine rank at once; where one fails the other is ended too."""
    folder.mkdir()
    where = ["--main_process_ip", "127.0.0.1", "--main_process_port", str(_free_port())]
    runs = [
        start(
            "recipes/causal_lm.py",
            [*flags, "--output_dir", str(folder / "out")],
            yaml=yaml,
            folder=folder,
            launcher=[*where, "--machine_rank", str(rank)],
        )
        for rank in range(2)
    ]
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(finish, run, folder=folder, timeout=240) for run in runs]
        for done in as_completed(waiting):
            for run in runs if done.result().returncode != 0 else ():
                run.terminate()  # the launcher ends its own processes
    return [done.result() for done in waiting]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("two", "one", "engine"),
    [
        ("two_nodes", "ddp", "DistributedDataParallel"),
        ("two_nodes_zero3", "zero3", "DeepSpeedEngine"),
        ("two_nodes_fsdp2", "fsdp2", "FSDP2 DTensor"),
    ],
)
def test_two_launchers_train_as_one_does(two: str, one: str, engine: str, flags: list[str], tmp_path: Path) -> None:
    """A process under each of two launchers: the engine, the losses and the one summary of two under one launcher."""
    runs = _two_launchers(FOLDER / f"{two}.yaml", flags, tmp_path / "two")
    assert [run.returncode for run in runs] == [0, 0], "".join(run.output[-2500:] for run in runs)
    ranks = [json.loads((tmp_path / "two" / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert [(rank["processes"], rank["engine"]) for rank in ranks] == [(2, engine)] * 2
    assert [len(re.findall("What came out", run.output)) for run in runs] == [1, 0]
    assert (tmp_path / "two" / "out" / "model.safetensors").is_file()
    single = [*flags, "--output_dir", str(tmp_path / "one" / "out")]
    reference = launch("recipes/causal_lm.py", single, yaml=FOLDER / f"{one}.yaml", folder=tmp_path / "one")
    assert reference.returncode == 0, reference.output[-3000:]
    assert len(ranks[0]["losses"]) == 4
    assert ranks[0]["losses"] == pytest.approx(reference.ranks[0]["losses"], abs=1e-6)
