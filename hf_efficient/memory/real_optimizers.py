"""Optimizers that are run as they are, on tensors without data: how Trainer builds each, and how it works on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Kind(NamedTuple):
    """How one optimizer is built and what it does on a GPU."""

    build: Callable[[list[dict[str, Any]], Mapping[str, str]], torch.optim.Optimizer]
    """Takes the groups and `optim_args`."""
    at_once: bool = False
    """Updates all tensors of a group together (foreach), so that what it makes in passing adds up."""
    steps_on_card: bool = False
    """Keeps its counter of steps as a tensor on the card; foreach keeps it on the host."""
    projects: bool = False
    """Takes the weights that `optim_target_modules` names to few dimensions, and renews them now and then."""


def _adamw(fused: bool) -> Callable[..., torch.optim.Optimizer]:
    return lambda groups, options: torch.optim.AdamW(groups, fused=fused or None, foreach=None if fused else True)


def _sgd(groups: list[dict[str, Any]], options: Mapping[str, str]) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=1e-3, foreach=True, **_numbers(options, "momentum", "dampening", "nesterov"))


def _adagrad(groups: list[dict[str, Any]], options: Mapping[str, str]) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(groups, foreach=True, **_numbers(options, "lr_decay"))


def _rmsprop(groups: list[dict[str, Any]], options: Mapping[str, str]) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(groups, foreach=True, **_numbers(options, "momentum", "centered"))


def _adafactor(groups: list[dict[str, Any]], options: Mapping[str, str]) -> torch.optim.Optimizer:
    from transformers.optimization import Adafactor

    made: torch.optim.Optimizer = Adafactor(groups, lr=1e-3, scale_parameter=False, relative_step=False)
    return made


def _schedule_free(name: str) -> Callable[..., torch.optim.Optimizer]:
    def build(groups: list[dict[str, Any]], options: Mapping[str, str]) -> torch.optim.Optimizer:
        made: Any = getattr(import_module("schedulefree"), name)(groups, lr=1e-3)
        made.train()
        optimizer: torch.optim.Optimizer = made
        return optimizer

    return build


def _galore(name: str, **stock: Any) -> Callable[..., torch.optim.Optimizer]:
    def build(groups: list[dict[str, Any]], options: Mapping[str, str]) -> torch.optim.Optimizer:
        defaults = {"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
        return _projecting(getattr(import_module("galore_torch"), name), groups, options, defaults, **stock)

    return build


def _apollo(groups: list[dict[str, Any]], options: Mapping[str, str]) -> torch.optim.Optimizer:
    defaults = {"rank": 128, "proj": "random", "scale_type": "channel", "update_proj_gap": 200, "scale": 1.0}
    return _projecting(import_module("apollo_torch").APOLLOAdamW, groups, options, defaults | {"proj_type": "std"})


def _projecting(
    make: Any, groups: list[dict[str, Any]], options: Mapping[str, str], defaults: dict[str, Any], **stock: Any
) -> torch.optim.Optimizer:
    read = {key: type(value)(options.get(key, value)) for key, value in defaults.items()}
    for group in groups:
        if group.pop("projected"):
            group.update(read)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # both announce that transformers' old AdamW is old
        made: torch.optim.Optimizer = make(groups, lr=1e-3, **stock)
    return made


def _numbers(options: Mapping[str, str], *names: str) -> dict[str, Any]:
    """Return those of `optim_args` that decide what state there is."""
    words = {"true": True, "yes": True, "false": False, "no": False}
    found = {name: options[name].lower() for name in names if name in options}
    return {name: words[text] if text in words else float(text) for name, text in found.items()}


REAL = {
    "adamw_torch": Kind(_adamw(fused=False), at_once=True),
    "adamw_torch_fused": Kind(_adamw(fused=True), steps_on_card=True),
    "sgd": Kind(_sgd, at_once=True),
    "adagrad": Kind(_adagrad, at_once=True),
    "rmsprop": Kind(_rmsprop, at_once=True),
    "adafactor": Kind(_adafactor),
    "schedule_free_adamw": Kind(_schedule_free("AdamWScheduleFree"), at_once=True),
    "schedule_free_radam": Kind(_schedule_free("RAdamScheduleFree"), at_once=True),
    "schedule_free_sgd": Kind(_schedule_free("SGDScheduleFree"), at_once=True),
    "galore_adamw": Kind(_galore("GaLoreAdamW"), projects=True),
    "galore_adafactor": Kind(_galore("GaLoreAdafactor", scale_parameter=False, relative_step=False), projects=True),
    "apollo_adamw": Kind(_apollo, projects=True),
}


class _Answers(TorchDispatchMode):
    """Answer 1 where an optimizer asks a tensor without data for its number; memory does not depend on it.

    An SVD works on a copy of its matrix, here and in cuSOLVER alike, which tensors without data do not show.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return {torch.bool: True}.get(args[0].dtype, 1)
        _copy = torch.empty_like(args[0]) if func is torch.ops.aten._linalg_svd.default else None
        return func(*args, **(kwargs or {}))


@contextmanager
def without_data(name: str) -> Iterator[None]:
    """Let the optimizers run that look at numbers: APOLLO limits its update's norm and draws a new seed."""
    if not REAL[name].projects:
        yield
        return
    seed = patch("apollo_torch.random_projector.next_seed", lambda seed: seed)
    with seed if name.startswith("apollo") else nullcontext(), _Answers():
        yield
