"""Models that were pretrained in bf16 and overflow in fp16."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hf_efficient.checks.check import check
from hf_efficient.checks.rules.precision_places import card, known_capability, precision_of, without_gpu
from hf_efficient.finding import Finding, Place, info, warning
from hf_efficient.reading.models import dtype
from hf_efficient.reading.settings import Settings
from hf_efficient.reading.setup import Setup

T5_TYPES = ("t5", "mt5", "umt5", "longt5", "byt5", "switch_transformers", "pix2struct", "udop", "pop2piano", "nllb_moe")
GEMMA_TYPES = ("gemma", "recurrent_gemma", "paligemma", "t5gemma", "shieldgemma2", "vaultgemma", "embeddinggemma")
NAMED = (
    (
        r"(^|[/_-])(flan-?|m|um|by|long-?|code|sentence-|gtr-)?t5([-_.]|gemma|x|$)|(^|[/-])(flan-)?ul2|madlad400|aya-101",
        "T5",
    ),
    (r"(^|[/-])(code|recurrent|pali|t5|shield|vault|embedding|med|data|txt?)?gemma", "Gemma"),
)
"""Names of checkpoints of the two families."""


def family(model: Settings) -> str:
    """Return T5 or Gemma where the model is of a family that is known to overflow in fp16, else an empty string."""
    kind = model.text("model_type").lower()
    if kind:
        gemma = kind.startswith(GEMMA_TYPES)
        return "Gemma" if gemma else "T5" if kind in T5_TYPES else ""
    made = model.text("class")
    if re.match(r"(M|UM|Long)?T5(For|Model|Encoder)|SwitchTransformers|Pix2Struct|Udop", made):
        return "T5"
    if re.match(r"(Recurrent|Pali|T5)?Gemma", made):
        return "Gemma"
    named = model.text("name").lower()
    return next((name for pattern, name in NAMED if named and re.search(pattern, named)), "")


def _in_fp16(setup: Setup, model: Settings) -> tuple[str, Place] | None:
    """Return what makes the model compute in fp16: autocast, DeepSpeed, or its own weights."""
    precision = precision_of(setup)
    if precision is not None and precision.value == "fp16":
        return f"fp16 ({precision.by})", precision.place
    for call in setup.script.named("GradScaler") if setup.script is not None else []:
        if call.keywords.get("enabled", True) is True and setup.trainer is None and setup.accelerator is None:
            return "fp16 with a GradScaler", call.place
    key = "cast_dtype" if model.said("cast_dtype") else "load_dtype"
    trains = setup.trainer is not None or setup.accelerator is not None
    if dtype(model.get(key)) == "float16" and trains and (precision is None or precision.value != "bf16"):
        return "weights in float16", model.where(key)
    return None


@check({"transformers": ">=4.0"}, seen="report")
def bf16_born_model_in_fp16(setup: Setup, model: Settings) -> Iterator[Finding]:
    """Find a model pretrained in bf16 that is trained in fp16.

    bf16 reaches to 3.4e38, fp16 to 65504: activations that a model learned to have in bf16 can overflow in fp16, the
    loss becomes nan, or the loss scale falls until no step is taken. T5 (mt5, umt5, longt5, flan, byt5 ...) and Gemma
    are known for it; a checkpoint stored in bfloat16 is a sign of it. transformers clamps T5's hidden states and keeps
    its wo projections in fp32 only where the weights themselves are fp16 (models/t5/modeling_t5.py), which does not
    protect fp16 autocast. For a checkpoint in bfloat16 of another family it is told as a warning where the card has
    bf16, and as an info on cards that have none.
    """
    how, name = _in_fp16(setup, model), family(model)
    stored = dtype(model.get("checkpoint_dtype")) == "bfloat16"
    if how is None or without_gpu(setup) or not (name or stored):
        return
    capability = known_capability(setup.machine)
    old = capability is not None and capability < (8, 0)
    what = f"{name} (model_type {model.text('model_type')})" if model.text("model_type") else name
    tell = warning if name or not old else info
    where = f" on {card(setup.machine)}" if capability else ""
    yield tell(
        f"{what or 'A model whose checkpoint is bfloat16'}, pretrained in bf16, is trained in {how[0]}{where}",
        why="Its activations can exceed 65504, the largest fp16 number: nan losses, or a loss scale that"
        " collapses and skips every step.",
        fix=_remedy(setup, old=old, known=capability is not None),
        at=how[1],
    )


def _remedy(setup: Setup, *, old: bool, known: bool) -> str:
    if old:
        return (
            "This card has no bf16: train in fp32 (fp16=False, dtype=torch.float32), or with bf16=True on a card of"
            " compute capability 8.0 or more (A100, L4, RTX 30 and later)."
        )
    deepspeed = ' (and "enabled": "auto" under bf16, fp16 off, in the DeepSpeed file)' if setup.zero is not None else ""
    least = "" if known else ", which needs a card of compute capability 8.0; train in fp32 (float32) on an older one"
    return f"Use bf16=True (bfloat16) instead of fp16=True{deepspeed}{least}."
