"""The same training by torch alone: one batch per update, its mean loss, and a textbook optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_efficient.plan import Plan
from hf_efficient.promises.facts import draw_alike
from hf_efficient.promises.seen import Seen, parts
from hf_efficient.promises.subject import Subject, reference_plan

if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHT_DECAY = 0.1
"""Decay of runs with an optimizer of the AdamW kind; runs of SGD have none."""


class Plain(NamedTuple):
    """One update's mean loss and the gradient of each trained parameter, as a vector in float32."""

    loss: float
    gradients: dict[str, Tensor]

    def gradient(self, names: Sequence[str]) -> Tensor | None:
        """Return the gradient of these parameters as one vector; None where one of them is not trained here."""
        import torch

        if not all(name in self.gradients for name in names):
            return None
        return torch.cat([self.gradients[name] for name in names]) if names else torch.zeros(0)


def plain_updates(subject: Subject, plan: Plan, *, effective: int, dropout: bool) -> list[Plain]:
    """Return what torch makes of each `effective` samples in one batch, at the model's first weights."""
    import torch

    plan = reference_plan(plan).override("model", other_attention(plan), by="verify")
    model, autocast = subject.model(plan, dropout=dropout), bool(plan["trainer"].get("bf16"))
    collate, found = subject.collator(Plan(), model), []
    for number, start in enumerate(range(0, len(subject.rows), effective)):
        draw_alike(number)
        batch = collate(subject.rows[start : start + effective])
        with torch.autocast(next(model.parameters()).device.type, torch.bfloat16, enabled=autocast):
            loss = model(**batch).loss
        loss.backward()
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradients = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in trained.items()}
        vectors = {name: gradient.detach().float().flatten().cpu() for name, gradient in gradients.items()}
        found.append(Plain(float(loss.detach()), vectors))
        model.zero_grad()
    return found


def other_attention(plan: Plan) -> dict[str, str]:
    """Return the attention kernel to hold the plan's against, if it names one."""
    asked = plan["model"].get("attn_implementation")
    return {"attn_implementation": "sdpa" if asked == "eager" else "eager"} if asked else {}


def textbook_changes(seen: Seen, rates: Sequence[float], model: nn.Module, *, adamw: bool) -> list[Tensor]:
    """Return what AdamW, a loop over the tensors, or SGD makes of the gradients that `seen` had at these `rates`.

    `model` holds the first weights; as in a watched run, every update starts from them.
    """
    import torch

    if not adamw:
        return [-rate * update.gradient for rate, update in zip(rates, seen.updates, strict=False)]
    trained = {name: parameter for name, parameter in model.named_parameters() if name in seen.names}
    before = {name: parameter.detach().clone() for name, parameter in trained.items()}
    optimizer, changes = torch.optim.AdamW(_groups(model, trained), foreach=False), []
    for rate, update in zip(rates, seen.updates, strict=False):
        for parameter, part in zip(trained.values(), parts(update.gradient, seen), strict=True):
            parameter.grad = part.view_as(parameter).clone()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        changes.append(torch.cat([(p.detach() - before[name]).flatten() for name, p in trained.items()]))
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(before[name])
    return changes


def _groups(model: nn.Module, trained: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parameters in Trainer's two groups: neither biases nor norms are decayed."""
    from transformers import Trainer

    decayed = Trainer.get_decay_parameter_names(None, model)
    return [
        {
            "params": [parameter for name, parameter in trained.items() if (name in decayed) == decay],
            "weight_decay": WEIGHT_DECAY * decay,
        }
        for decay in (True, False)
    ]
