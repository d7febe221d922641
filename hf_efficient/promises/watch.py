"""What one run shows of itself, whoever wrote it: its updates, and plain facts about how it computed them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

from hf_efficient.promises.facts import (
    about_optimizer,
    asleep,
    documents_of,
    draw_alike,
    drop_rates,
    fingerprint,
    graphs,
    matmul_precision,
    multiplies,
    settings_of,
    uncompiled,
)
from hf_efficient.promises.seen import Seen, Update

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


@dataclass
class Watch:
    """Watches a model while something trains it, and puts its weights back after each update.

    All updates are then taken at the same weights, so that their gradients compare whatever the optimizer does.
    `inside` looks into the model's layers too, which would break a compiled graph.
    """

    model: nn.Module
    inside: bool = True
    seen: Seen = field(default_factory=Seen)
    _forwards: int = 0
    _samples: int = 0
    _learns: bool = False
    _calls: Counter[str] = field(default_factory=Counter)
    _stepped: set[int] = field(default_factory=set)
    """Optimizers that have stepped in this update."""
    _held: set[int] = field(default_factory=set)
    """Parameters that some optimizer has."""

    @contextmanager
    def on(self) -> Iterator[Seen]:
        """Watch until the block ends."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.seen.names, self.seen.sizes = list(self._trained), [p.numel() for p in self._trained.values()]
        self.seen.size = float(sum(p.detach().double().square().sum() for p in self._trained.values()) ** 0.5)
        self._before = {name: p.detach().clone() for name, p in self._trained.items()}
        self._drops = drop_rates(self.model)
        forward: Any = self._forward if self.inside else uncompiled(self._forward)
        handles = [
            self.model.register_forward_pre_hook(forward, with_kwargs=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        self._layers = [module for module in self.model.modules() if multiplies(module)]
        if self.inside:
            handles += [module.register_forward_hook(self._layer) for module in self._layers]
        before = graphs()
        with ExitStack() as stack:
            for handle in handles:
                stack.callback(handle.remove)
            stack.enter_context(self._clipping())
            stack.enter_context(self._loading())
            yield self.seen
        self._conclude(graphs() - before)

    def _forward(self, model: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        import torch

        batch = {"input": args[0], **keywords} if args else keywords
        tensors = {key: value for key, value in batch.items() if isinstance(value, torch.Tensor) and value.ndim}
        if not tensors:
            return
        self._learns = torch.is_grad_enabled()
        main = tensors.get(getattr(model, "main_input_name", ""), next(iter(tensors.values())))
        if not self._learns:
            if self.seen.updates:
                self._most("eval_rows", len(main))
            return
        draw_alike(len(self.seen.updates), self._forwards)
        self._forwards += 1
        documents = documents_of(tensors)
        self._samples += documents or len(main)
        self._most("rows", len(main))
        self._append("shapes", tuple(sorted((key, tuple(value.shape)) for key, value in tensors.items())))
        self._append("order", fingerprint(main, tensors))
        if documents > len(main):
            self.seen.facts["documents"] = "several in a row"
            mask = tensors.get("attention_mask")
            self.seen.full_masks |= mask is not None and bool(mask.bool().all())
        self.seen.facts["noise"] = any("neftune" in str(h) for m in model.modules() for h in m._forward_hooks.values())
        self.seen.asleep = self.seen.asleep or asleep(model)
        rates = drop_rates(model)
        self.seen.redropped = self.seen.redropped or tuple(
            name for name, rate in rates.items() if rate != self._drops.get(name, rate)
        )

    def _layer(self, module: nn.Module, _: Any, output: Any) -> None:
        import torch

        # Reentrant checkpointing computes without gradients first, so that the model's own forward decides.
        if isinstance(output, torch.Tensor) and self._learns:
            self._calls[str(output.dtype).removeprefix("torch.")] += 1

    def _mine(self, optimizer: Optimizer) -> bool:
        trained = {id(p) for p in self._trained.values()}
        return any(id(p) in trained for group in optimizer.param_groups for p in group["params"])

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        import torch

        if not self._mine(optimizer):
            return
        self._held |= {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not self._forwards and self._stepped and id(optimizer) not in self._stepped:
            self._stepped.add(id(optimizer))  # one of several, or the one inside another
            return
        self._stepped = {id(optimizer)}
        missing = tuple(name for name, p in self._trained.items() if p.grad is None)
        gradient = _vector(p.grad if p.grad is not None else torch.zeros_like(p) for p in self._trained.values())
        rate, change = float(optimizer.param_groups[0]["lr"]), torch.zeros_like(gradient)
        self.seen.updates.append(Update(gradient, change, rate, self._forwards, self._samples, missing))
        self._forwards = self._samples = 0
        self.seen.facts["optimizer"] = about_optimizer(optimizer)
        self.seen.settings = self.seen.settings or settings_of(optimizer)

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        import torch

        if not self._mine(optimizer) or not self.seen.updates:
            return
        self.seen.facts["paged"] = any(
            getattr(value, "is_paged", False) for state in optimizer.state.values() for value in state.values()
        )
        with torch.no_grad():
            self.seen.updates[-1].change += _vector(p - self._before[name] for name, p in self._trained.items())
            for name, parameter in self._trained.items():
                parameter.copy_(self._before[name])

    @contextmanager
    def _clipping(self) -> Iterator[None]:
        import torch
        from torch.nn.utils import clip_grad

        values = torch.nn.utils.clip_grad_value_
        clip: Callable[..., None] = clip_grad._clip_grads_with_norm_  # what clip_grad_norm_ calls, imported or not

        def noted(parameters: Any, max_norm: float, norm: Tensor, *args: Any, **keywords: Any) -> None:
            clip(parameters, max_norm, norm, *args, **keywords)
            if max_norm < float("inf"):
                self.seen.clips.append((float(max_norm), float(norm)))

        def by_value(*args: Any, **keywords: Any) -> None:
            self.seen.values_clipped = True
            values(*args, **keywords)

        with (
            mock.patch.object(clip_grad, "_clip_grads_with_norm_", noted),
            mock.patch.object(torch.nn.utils, "clip_grad_value_", by_value),
        ):
            yield

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """Note how loaders load, and end their workers: the garbage collector, if it is first, waits 5 s for each."""
        from torch.utils.data import DataLoader

        loaders: list[Any] = []
        iterate = DataLoader.__iter__

        def noted(loader: Any) -> Any:
            loaders.append(loader)
            self._most("workers", loader.num_workers)
            self._most("pinned", int(loader.pin_memory))
            return iterate(loader)

        with mock.patch.object(DataLoader, "__iter__", noted):
            yield
        for loader in loaders:
            if getattr(loader, "_iterator", None) is not None:
                loader._iterator._shutdown_workers()

    def _conclude(self, graphs: int) -> None:
        facts, forwards = self.seen.facts, sum(update.forwards for update in self.seen.updates)
        self.seen.left_out = tuple(name for name, p in self._trained.items() if id(p) not in self._held)
        facts["forwards"] = tuple(update.forwards for update in self.seen.updates)
        facts["graphs"] = graphs > 0
        facts["clipped"] = any(norm > limit for limit, norm in self.seen.clips)
        facts["trained"] = sum(self.seen.sizes)
        facts["attention"] = getattr(getattr(self.model, "config", None), "_attn_implementation", None)
        facts["layers"] = tuple(sorted({type(m).__name__ for m in self.model.modules() if multiplies(m)}))
        facts["matmul"] = matmul_precision()
        if self.inside:
            facts["dtypes"] = tuple(sorted(self._calls))
            facts["recomputed"] = self._calls.total() > 1.2 * forwards * len(self._layers) > 0

    def _most(self, fact: str, value: int) -> None:
        self.seen.facts[fact] = max(value, self.seen.facts.get(fact, 0))

    def _append(self, fact: str, value: Any) -> None:
        self.seen.facts[fact] = (*self.seen.facts.get(fact, ()), value)


def _vector(tensors: Any) -> Tensor:
    import torch

    return torch.cat([tensor.detach().float().flatten().cpu() for tensor in tensors])
