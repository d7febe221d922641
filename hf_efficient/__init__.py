"""Training-efficiency tricks for the Hugging Face stack: a plan that becomes plain objects and files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_efficient.checks.run import run_checks as run_checks
    from hf_efficient.emit.loop import clip as clip
    from hf_efficient.emit.loop import dataloader_keywords as dataloader_keywords
    from hf_efficient.emit.loop import make_accelerator as make_accelerator
    from hf_efficient.emit.loop import make_optimizer as make_optimizer
    from hf_efficient.emit.loop import prepare_model as prepare_model
    from hf_efficient.emit.model import add_adapter as add_adapter
    from hf_efficient.emit.model import model_keywords as model_keywords
    from hf_efficient.emit.model import peft_config as peft_config
    from hf_efficient.emit.trainer import training_arguments as training_arguments
    from hf_efficient.machine import Machine as Machine
    from hf_efficient.memory.estimate import estimate as estimate
    from hf_efficient.memory.results import Batch as Batch
    from hf_efficient.merge import make_plan as make_plan
    from hf_efficient.merge import preset as preset
    from hf_efficient.promises.verify import verify as verify
    from hf_efficient.train.accumulation import exact_accumulation as exact_accumulation
    from hf_efficient.train.collator import make_collator as make_collator
    from hf_efficient.train.packing import pack as pack
    from hf_efficient.train.windows import windows as windows

_WHERE = {
    "Batch": "memory.results",
    "Machine": "machine",
    "add_adapter": "emit.model",
    "clip": "emit.loop",
    "dataloader_keywords": "emit.loop",
    "estimate": "memory.estimate",
    "exact_accumulation": "train.accumulation",
    "make_accelerator": "emit.loop",
    "make_collator": "train.collator",
    "make_optimizer": "emit.loop",
    "make_plan": "merge",
    "model_keywords": "emit.model",
    "pack": "train.packing",
    "peft_config": "emit.model",
    "prepare_model": "emit.loop",
    "preset": "merge",
    "run_checks": "checks.run",
    "training_arguments": "emit.trainer",
    "verify": "promises.verify",
    "windows": "train.windows",
}

__version__ = "0.1.0"
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    # `from hf_efficient.train.windows import ...` puts submodules here, never under a public name but `train`.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
