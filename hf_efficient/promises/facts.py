"""Plain facts about how a model is being trained, and the names by which tricks say which of them they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

SEED = 20_000
"""Random numbers of the first micro-batch of the first update start here."""
FACTS = (
    "attention", "clipped", "documents", "dtypes", "eval_rows", "forwards", "graphs", "layers", "matmul", "noise",
    "optimizer", "order", "paged", "pinned", "recomputed", "rows", "shapes", "trained", "workers",
)  # fmt: skip
"""What a trick's `shows` may name."""


def draw_alike(update: int, micro_batch: int = 0) -> None:
    """Start all random numbers where those of this micro-batch start, whatever has been drawn before."""
    import random

    import numpy
    import torch

    seed = SEED + 1000 * update + micro_batch
    random.seed(seed)
    numpy.random.seed(seed)  # masks of speech models
    torch.manual_seed(seed)


def uncompiled(hook: Callable[..., None]) -> Any:
    """Return a hook that torch.compile leaves out of its graph."""
    import torch

    disable: Any = torch._dynamo.disable
    return disable(hook)


def matmul_precision() -> str:
    """Return torch's precision of float32 matmuls."""
    import torch

    backends: Any = torch.backends
    return str(backends.fp32_precision)


def graphs() -> int:
    """Return how many graphs torch.compile has made in this process."""
    import sys

    if "torch._dynamo" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def multiplies(module: nn.Module) -> bool:
    """Say whether a module is a leaf that multiplies by a matrix: what a layer's work is done in."""
    weight = getattr(module, "weight", None)
    leaf = not any(True for _ in module.children())
    return leaf and getattr(weight, "ndim", 0) >= 2 and "Embedding" not in type(module).__name__


def documents_of(tensors: Mapping[str, Tensor]) -> int:
    """Count the documents of rows whose positions restart; 0 where a row is one document."""
    positions = tensors.get("position_ids")
    if positions is None or positions.ndim != 2:
        return 0
    starts = int((positions == 0).sum())
    return starts if starts > len(positions) else 0


def fingerprint(main: Tensor, tensors: Mapping[str, Tensor]) -> tuple[float, ...]:
    """Return a number per sample of a batch, whatever its padding."""
    mask = tensors.get("attention_mask")
    values = main.detach().double()
    if mask is not None and mask.shape == main.shape:
        values = values * mask
    return tuple(round(value, 3) for value in values.flatten(1).sum(1).tolist())


def drop_rates(model: nn.Module) -> dict[str, float]:
    """Return how much each module drops: dropout's own rate, and rates that other modules have as attributes."""
    rates: dict[str, float] = {}
    for name, module in model.named_modules():
        if "Dropout" in type(module).__name__ and hasattr(module, "p"):
            rates[name] = float(module.p)
        rates |= {f"{name}.{key}": value for key, value in vars(module).items() if _is_rate(key, value)}
    return rates


def _is_rate(key: str, value: object) -> bool:
    return "drop" in key and isinstance(value, float)


def asleep(model: nn.Module) -> tuple[str, ...]:
    """Return the modules with dropout that are in evaluation mode; the model itself is an empty name."""
    modules = dict(model.named_modules())
    drops = [name if name in modules else name.rpartition(".")[0] for name, p in drop_rates(model).items() if p > 0]
    return tuple(name for name in dict.fromkeys(["", *drops]) if not modules[name].training)


def settings_of(optimizer: Optimizer) -> tuple[Any, ...]:
    """Return the settings and the size of each group of an optimizer, learning rates aside."""
    aside = ("params", "lr", "initial_lr")
    return tuple(
        (*sorted((key, str(value)) for key, value in group.items() if key not in aside), len(group["params"]))
        for group in optimizer.param_groups
    )


def about_optimizer(optimizer: Optimizer) -> tuple[str, ...]:
    """Return the optimizer's class and its kernel."""
    inner = getattr(optimizer, "optimizer", optimizer)
    fused = inner.param_groups[0].get("fused")
    kind = type(inner)
    return (f"{kind.__module__}.{kind.__name__}", *(["fused"] if fused else []))
