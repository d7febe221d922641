"""Updates of two processes under each sharding trick, against torch alone: one process, one batch per update.

    python benchmarks/sharded.py [--json FILE]

`verify` trains in one process, and sharding needs a launcher: this starts `accelerate launch` with two processes on the
CPU (gloo) for each trick and head. The second of two updates has half the micro-batches of the first. Weights move by
SGD at a learning rate of 1, so that an update is the gradient; torch starts each of its own from the same weights.

Exit code 1 where a promise is broken by a run that calls `exact_accumulation`. The worker is sharded_worker.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import hf_efficient as hf
from hf_efficient.plan import Plan
from hf_efficient.promises.heads import HEADS
from hf_efficient.promises.judge import EXACT, Verdict
from hf_efficient.promises.measure import Measured, measure
from hf_efficient.promises.reference import Plain
from hf_efficient.promises.samples import tiny_subject
from hf_efficient.promises.seen import Seen, Update
from hf_efficient.wording import one_sentence

ROOT = Path(hf.__file__).parents[1]
WORKER = Path(__file__).with_name("sharded_worker.py")
PROCESSES, STEPS, PER_DEVICE = 2, 2, 2
ROWS = 3 * PROCESSES * PER_DEVICE
"""Three micro-batches a process in windows of two: accelerate has no row to repeat, and the last window is short."""
UPDATES = 2
LIMIT = 180.0
"""Seconds for one launch, which takes 10 to 30."""
SHIMS = "on a CPU only with accelerate told that its processes have GPUs, and fsdp's need of one taken as met"
COLUMNS = ("head", "name", "verdict", "loss_diff", "gradient_diff", "norm_ratio", "engine", "why")
KEPT = ("name", "promise", "verdict", "loss_diff", "gradient_diff", "norm_ratio", "why", "fix")


class Arm(NamedTuple):
    """One launch: a head and a sharding trick, or none for plain data parallelism.

    `exact` calls exact_accumulation; `layers` names the classes that FSDP shards one by one, where the model's own list
    of them cannot be taken.
    """

    head: str
    trick: str = ""
    exact: bool = True
    layers: str = ""

    @property
    def name(self) -> str:
        """Return what the table calls it."""
        name = (self.trick or "data parallelism") + (" with its layers named" if self.layers else "")
        return name + ("" if self.exact else " without exact_accumulation")

    @property
    def plan(self) -> Plan:
        """Return the plan of the launch."""
        return hf.make_plan(*[self.trick] * bool(self.trick), f"gradient_accumulation({STEPS})")


TRICKS = ("zero(1)", "zero(2)", "zero(3)", "fsdp", "")
ARMS = (
    *(Arm(head, trick) for head in ("llama", "roberta") for trick in TRICKS),
    Arm("roberta", "fsdp", layers="RobertaLayer"),
    *(Arm(head, exact=False) for head in ("llama", "roberta")),
)
KNOWN = {
    "value was None when it should not be": (
        "accelerate shards the input embeddings again inside the embeddings that the model lists among its layers",
        "name the layers: fsdp_transformer_layer_cls_to_wrap: RobertaLayer below fsdp_config of the launch YAML",
    ),
}
"""Part of an error -> what it means, and the remedy that was seen to help."""


def run(arms: Sequence[Arm] = ARMS) -> list[dict[str, Any]]:
    """Return a row for each of `arms`, launched one after the other; what fails is a row too."""
    return [_row(arm) for arm in arms]


def _row(arm: Arm) -> dict[str, Any]:
    start, engine = time.monotonic(), ""
    try:
        with TemporaryDirectory() as folder:
            ranks = _launch(arm, Path(folder))
            engine, verdict = _engine(ranks[0]["facts"]), _judge(arm, ranks)
    except Exception as error:  # whatever a launch can end with, the others go on
        text = one_sentence(error)[:300]
        why, fix = next((known for mark, known in KNOWN.items() if mark in text), (text, "leave it out"))
        verdict = Verdict(arm.name, "exact", "broken", why=f"training stops: {why}", fix=fix)
    print(f"{arm.head} {arm.name}: {verdict.verdict}, {time.monotonic() - start:.0f} s", file=sys.stderr)
    kept = {key: value for key, value in verdict.row().items() if key in KEPT}
    return {"head": arm.head, **kept, "engine": engine, "processes": PROCESSES}


def _launch(arm: Arm, folder: Path) -> list[dict[str, Any]]:
    """Start the worker in two processes by the plan's own YAML, and return what each of them saw.

    Raises RuntimeError with the last line of the error, and TimeoutError.
    """
    import torch

    from hf_efficient.emit.targets import Options, emit

    (folder / "launch.yaml").write_text(emit(arm.plan, "accelerate", Options(processes=PROCESSES)))
    launcher = ["-m", "accelerate.commands.launch", "--config_file", str(folder / "launch.yaml")]
    launcher += ["--fsdp_transformer_layer_cls_to_wrap", arm.layers] if arm.layers else []
    command = [sys.executable, *launcher, "--main_process_port", "0", str(WORKER), json.dumps(arm), str(folder)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=_environment(arm, folder), stdout=log, stderr=subprocess.STDOUT)
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"not done after {LIMIT:g} s") from None
        finally:
            _end(process)
    if code:
        lines = [line for line in (folder / "log").read_text().splitlines() if line.strip()]
        errors = [path.read_text() for path in sorted(folder.glob("error*"))]
        raise RuntimeError((errors or lines[-1:] or [f"exit code {code}"])[0])
    return [torch.load(folder / f"{rank}.pt") for rank in range(PROCESSES)]


def _environment(arm: Arm, folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"  # DeepSpeed looks for ninja
    env = os.environ | {"PATH": path, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    # An extension that a killed build has left locked would be waited for without end.
    env |= {"CUDA_VISIBLE_DEVICES": "", "TORCH_EXTENSIONS_DIR": str(folder / "extensions")}
    return env if "zero" in arm.trick else env | {"ACCELERATE_USE_CPU": "true"}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher that still runs, with its workers, which have sessions of their own."""
    import psutil

    if process.poll() is not None:
        return
    for one in [*psutil.Process(process.pid).children(recursive=True), process]:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            one.kill()
    process.wait()


def _judge(arm: Arm, ranks: Sequence[dict[str, Any]]) -> Verdict:
    """Compare each process's updates with torch's from the same weights, and the engine with what the trick asks."""
    worst = max((_measured(arm, seen) for seen in ranks), key=_badness)
    distance, ratio = worst.gradient_diff, worst.norm_ratio
    known = {"loss_diff": worst.loss_diff, "gradient_diff": distance, "norm_ratio": ratio}
    off = not worst.finite or distance is None or ratio is None or not distance <= EXACT or not abs(ratio - 1) <= EXACT
    fault = next((fault for seen in ranks if (fault := _engine_fault(arm, seen["facts"]))), "")
    why = f"{distance:.1e} in the worse of two updates, promised {EXACT:g}"
    if fault:
        return Verdict(arm.name, "exact", "broken", **known, why=fault, fix="look at the launcher and its log")
    if off and not arm.exact:
        why = f"stock Trainer: the gradient is {ratio:.4g} times as long"
        return Verdict(arm.name, "exact", "broken", **known, why=why, fix="call exact_accumulation(trainer)")
    if off:
        return Verdict(arm.name, "exact", "broken", **known, why=why, fix="leave it out")
    return Verdict(arm.name, "exact", "exact", **known, why=why + (f"; {SHIMS}" if arm.trick == "fsdp" else ""))


def _badness(measured: Measured) -> float:
    return measured.gradient_diff if measured.finite and measured.gradient_diff is not None else float("inf")


def _measured(arm: Arm, seen: dict[str, Any]) -> Measured:
    window, plain = PROCESSES * STEPS * PER_DEVICE, []
    with tiny_subject(HEADS[arm.head](), arm.head, ROWS) as subject:
        model: Any = subject.model(Plan(), dropout=False)
        named = dict(model.named_parameters())
        ours = Seen(names=list(named), sizes=[p.numel() for p in named.values()], losses=seen["losses"])
        for number, (before, after) in enumerate(pairwise(seen["weights"])):
            rows = subject.rows[number * window : (number + 1) * window]
            plain.append(_plain(model, before, subject.collator(Plan(), model)(rows)))
            ours.updates.append(Update(before - after, after - before, 1.0, STEPS, len(rows), ()))
    if len(plain) != UPDATES:
        raise ValueError(f"{len(plain)} updates instead of {UPDATES}")
    return measure(ours, plain, [])


def _plain(model: Any, weights: Any, batch: Any) -> Plain:
    """Return loss and gradient of one batch at `weights`, by torch alone."""
    import torch

    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(weights, model.parameters())
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return Plain(float(loss.detach()), {name: p.grad.flatten().clone() for name, p in model.named_parameters()})


def _engine(facts: dict[str, Any]) -> str:
    stage = f", stage {facts['stage']}" if facts["stage"] else ""
    return f"{facts['engine']}{stage}, {facts['weights']:.2f} of weights, {facts['optimizer']:.2f} of optimizer"


def _engine_fault(arm: Arm, facts: dict[str, Any]) -> str:
    """Return how the run was not sharded as asked: who trained, and the share of a process."""
    share, half = 1 / PROCESSES, 0.02
    stage = arm.plan["launch"].get("deepspeed_config", {}).get("zero_stage", 0)
    engine = "DeepSpeedEngine" if stage else "FSDP2 DTensor" if arm.trick == "fsdp" else "DistributedDataParallel"
    weights = share if stage == 3 or arm.trick == "fsdp" else 1.0
    optimizer = share if arm.trick else 1.0
    right = (facts["engine"], facts["stage"]) == (engine, stage)
    right &= abs(facts["weights"] - weights) < half and abs(facts["optimizer"] - optimizer) < half
    return "" if right else f"not sharded as asked: {_engine(facts)}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as aligned text."""
    shown = [COLUMNS, *([_cell(row[column]) for column in COLUMNS] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in shown]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def main() -> int:
    """Print the table, write the rows, and say whether a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows here")
    options = parser.parse_args()
    start, rows = time.monotonic(), run()
    print(table(rows))
    print(f"{len(rows)} launches of {PROCESSES} processes in {time.monotonic() - start:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    exact = [row for row, arm in zip(rows, ARMS, strict=True) if arm.exact]
    return int(any(row["verdict"] != "exact" for row in exact))


if __name__ == "__main__":
    sys.exit(main())
