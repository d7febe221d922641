"""Faults of data-parallel training, planted on purpose so that tests can show that they would see them."""

from __future__ import annotations

import os
from typing import Any


def plant(fault: str) -> None:
    """Break this process in the way that `fault` names; an empty name breaks nothing."""
    if fault:
        FAULTS[fault]()


def believe_in_one_process() -> None:
    """Let every process load its data as if it were the only one."""
    from accelerate import accelerator

    stock = accelerator.prepare_data_loader

    def prepare(*args: Any, **keywords: Any) -> Any:
        return stock(*args, **keywords | {"num_processes": 1, "process_index": 0})

    accelerator.prepare_data_loader = prepare


def sum_gradients() -> None:
    """Let data parallelism sum the gradients of the processes and not divide them."""
    import torch.distributed as dist

    def hook(_, bucket):  # torch refuses annotations that are strings
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    _hook(hook)


def keep_gradients() -> None:
    """Let every process update by its own gradients, its share of them under ZeRO 1 and 2."""
    import torch

    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

        DeepSpeedZeroOptimizer.average_tensor = lambda *_: None
        return

    def hook(_, bucket):
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    _hook(hook)


def clip_nothing() -> None:
    """Let the gradients pass whatever their limit; their norm is still told."""
    from accelerate import Accelerator

    stock = Accelerator.clip_grad_norm_

    def clip(self: Any, parameters: Any, *_: Any, **__: Any) -> Any:
        return stock(self, parameters, float("inf"))

    Accelerator.clip_grad_norm_ = clip


def _hook(hook: Any) -> None:
    from torch.nn.parallel import DistributedDataParallel

    stock = DistributedDataParallel.__init__

    def make(self: Any, *args: Any, **keywords: Any) -> None:
        stock(self, *args, **keywords)
        self.register_comm_hook(None, hook)

    DistributedDataParallel.__init__ = make


FAULTS = {
    "wrong world size": believe_in_one_process,
    "summed gradients": sum_gradients,
    "kept gradients": keep_gradients,
    "no clipping": clip_nothing,
}
