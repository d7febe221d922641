"""What tests that launch share: a launch YAML of a plan, `tests/launch.py` under `accelerate launch`, what it left.

yaml = emitted("zero(2)", folder=tmp_path)
run = launch("recipes/causal_lm.py", flags, yaml=yaml, folder=tmp_path / "run")
assert run.returncode == 0, run.output
run.ranks[0]["losses"]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PLAIN = ("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")


@dataclass(frozen=True)
class Launched:
    """A launch that ended: its exit code, standard output and error in one, and the rank files in order of rank."""

    returncode: int
    output: str
    ranks: list[dict[str, Any]] = field(default_factory=list)


def emitted(*plan: str, folder: Path, processes: int = 2) -> Path:
    """Write what `emit accelerate PLAN --processes N` prints to `folder/launch.yaml`; return its path.

    No plan is plain data parallelism.
    """
    from hf_efficient import make_plan
    from hf_efficient.emit.launch import launch_yaml

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "launch.yaml"
    path.write_text(launch_yaml(make_plan(*plan), processes))
    return path


def launch(
    script: str | Path,
    flags: Sequence[str],
    *,
    yaml: Path | None,
    folder: Path,
    processes: int = 2,
    env: Mapping[str, str] | None = None,
    launcher: Sequence[str] = (),
    timeout: float = 300,
) -> Launched:
    """Run `script flags` through `tests/launch.py` under `accelerate launch`, and wait for its end.

    `yaml` None is one process without an engine. `folder` gets the rank files (rank0.json ...); those of an earlier
    launch are deleted first. `env` are variables besides, such as KILL; `launcher` are flags of `accelerate launch`
    that stand last. A relative `script` counts from the repository. After `timeout` seconds all processes are killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("rank*.json"):
        old.unlink()
    run = start(script, flags, yaml=yaml, folder=folder, processes=processes, env=env, launcher=launcher)
    return finish(run, folder=folder, timeout=timeout)


def start(
    script: str | Path,
    flags: Sequence[str],
    *,
    yaml: Path | None,
    folder: Path,
    processes: int = 2,
    env: Mapping[str, str] | None = None,
    launcher: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """Return the running launcher, in a session of its own, for tests that start several; `finish` waits for it."""
    chosen = ["--config_file", str(yaml), "--num_processes", str(processes)]
    if yaml is None:
        chosen = ["--num_processes", "1", *PLAIN]
    command = ["accelerate", "launch", *chosen, "--main_process_port", "0", *launcher]
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # accelerate, and ninja for DeepSpeed
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "SEEN_IN": str(folder),
    }
    if yaml is None or "DEEPSPEED" not in yaml.read_text():
        environment["ACCELERATE_USE_CPU"] = "true"  # with DeepSpeed it would drop the engine
    return subprocess.Popen(
        [*command, str(ROOT / "tests" / "launch.py"), str(ROOT / script), *flags],
        env=environment | dict(env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(run: subprocess.Popen[str], *, folder: Path, timeout: float = 300) -> Launched:
    """Wait for `run`, kill what is left of its session after `timeout` seconds, and read the rank files."""
    try:
        output, _ = run.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        output = run.communicate()[0] + f"\nkilled after {timeout} seconds"
    files = sorted(folder.glob("rank*.json"), key=lambda path: int(path.stem.removeprefix("rank")))
    return Launched(run.returncode, output, [json.loads(file.read_text()) for file in files])
