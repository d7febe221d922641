"""Run a script as it stands under a launcher on CPUs, and leave what each of its processes saw.

    accelerate launch --config_file ... tests/launch.py SCRIPT ARGS

Variables: `SEEN_IN=FOLDER` gets a file `rank0.json` per process (losses and norms of the updates, the engine and its
numbers); `KILL=RANK:UPDATE` ends that process by SIGKILL before that update, counted from 0 (under DeepSpeed, whose
engine updates in the last backward, right after it); `PLANT=FAULT` breaks the training in one of the ways of faults.py.
An exception leaves with 1.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from engines import engine_facts, install, left_auto
from faults import plant

RANK = int(os.environ.get("RANK", "0"))


class Watch:
    """What a script's Accelerator prepares and trains, whoever calls it: Trainer or a loop."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.current = 0.0
        self.whole = False
        self.prepared: dict[str, Any] = {}
        rank, _, update = os.environ.get("KILL", "").partition(":")
        self.kill = int(update) if rank == str(RANK) else -1

    def start(self) -> None:
        """Look over the shoulder of Accelerator and of the optimizers' step."""
        from accelerate import Accelerator
        from accelerate.optimizer import AcceleratedOptimizer
        from accelerate.utils import DeepSpeedOptimizerWrapper
        from torch import nn

        stock, watch = Accelerator.prepare, self

        def prepare(accelerator: Any, *objects: Any, **keywords: Any) -> Any:
            for one in objects:
                if isinstance(one, nn.Module) and "model" not in watch.prepared:
                    watch.prepared["model"] = one
                    one.register_forward_hook(watch.note_loss)
            made = stock(accelerator, *objects, **keywords)
            for one in made if isinstance(made, tuple | list) else (made,):
                if isinstance(one, nn.Module):
                    watch.prepared["engine"] = one
                elif isinstance(one, AcceleratedOptimizer):
                    watch.prepared["optimizer"] = one
            watch.prepared["accelerator"] = accelerator
            return made

        Accelerator.prepare = prepare
        Accelerator.clip_grad_norm_ = self.measured(Accelerator.clip_grad_norm_)
        Accelerator.end_training = self.summed(Accelerator.end_training)
        for optimizer in (AcceleratedOptimizer, DeepSpeedOptimizerWrapper):
            optimizer.step = self.noted(optimizer.step)

    def note_loss(self, module: Any, args: Any, output: Any) -> None:
        """Add a micro-batch's loss, its share of the update's mean."""
        import torch

        if torch.is_grad_enabled() and module.training:
            self.current += float(output["loss"].detach())

    def noted(self, step: Any) -> Any:
        """Return `step` that ends an update's loss, and the process where it is to be killed."""

        def stepped(*args: Any, **keywords: Any) -> Any:
            if len(self.losses) == self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            self.losses.append(self.current)
            self.current = 0.0
            return step(*args, **keywords)

        return stepped

    def measured(self, clip: Any) -> Any:
        """Return `clip` that notes the norm before clipping."""

        def clipped(*args: Any, **keywords: Any) -> Any:
            norm = clip(*args, **keywords)
            whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            self.norms.append(float(whole))
            return norm

        return clipped

    def summed(self, end: Any) -> Any:
        """Return `end` that first sums the losses over the processes, which cannot speak to each other afterwards."""

        def ended(*args: Any, **keywords: Any) -> Any:
            self.sum_losses()
            return end(*args, **keywords)

        return ended

    def sum_losses(self) -> None:
        """Sum the losses of each update over the processes; a second call does nothing."""
        import torch
        import torch.distributed as dist

        if dist.is_initialized() and not self.whole:
            losses = torch.tensor(self.losses, dtype=torch.float64)
            dist.all_reduce(losses)
            self.losses, self.whole = losses.tolist(), True

    def leave(self, folder: Path) -> None:
        """Write what was seen; losses are summed over the processes."""
        seen = self.prepared
        self.sum_losses()
        facts: dict[str, Any] = {"losses": self.losses, "norms": self.norms}
        facts["processes"] = seen["accelerator"].num_processes
        facts |= engine_facts(seen["engine"], seen["model"], seen["optimizer"])
        plugin = seen["accelerator"].state.deepspeed_plugin
        facts["auto"] = left_auto(plugin.deepspeed_config) if plugin else []
        (folder / f"rank{RANK}.json").write_text(json.dumps(facts))


def main(script: str, arguments: list[str]) -> int:
    """Run `script` as `__main__` with `arguments`; return its exit code."""
    import torch.distributed as dist

    install()
    plant(os.environ.get("PLANT", ""))
    watch = Watch()
    watch.start()
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stopped:
        if isinstance(stopped.code, str):
            print(stopped.code, file=sys.stderr)
        if stopped.code:
            return stopped.code if isinstance(stopped.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    if "SEEN_IN" in os.environ:
        watch.leave(Path(os.environ["SEEN_IN"]))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2:])
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)  # gloo sometimes aborts while the interpreter exits
