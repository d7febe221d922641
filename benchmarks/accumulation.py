"""Accumulation of 4 micro-batches against one big batch, under SGD in fp32: stock Trainer, exact_accumulation, windows.

    python benchmarks/accumulation.py

Tiny models of the heads of the matrix, and of heads that no list of ours has, on rows of unequal lengths and labels, in
an epoch whose last window is short. A row gives, for the update farthest off, how long stock Trainer's is in units of
the right one, and the relative L2 distance and the norm ratio of ours through Trainer and through a hand-written loop.
Exit code 1 where one of ours is more than 1e-5 off and is not said to be another training. Question answering is not
here: its softmax runs over the padding too, so that the loss of a row changes with the rows beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from transformers import PreTrainedConfig, Trainer

from hf_efficient.merge import make_plan
from hf_efficient.promises.doors import by_loop, by_trainer
from hf_efficient.promises.heads import HEADS, configuration
from hf_efficient.promises.judge import EXACT, Verdict, judge
from hf_efficient.promises.samples import tiny_subject
from hf_efficient.promises.trial import Trial, samples_wanted

PLAN = make_plan("gradient_accumulation(4)")
DOORS = {"stock": by_trainer(Trainer), "exact_accumulation": by_trainer(), "windows": by_loop()}


UNLISTED = {
    "opt": partial(configuration, "OPTConfig", "OPTForCausalLM"),
    "phi3": partial(configuration, "Phi3Config", "Phi3ForCausalLM"),
    "bart": partial(configuration, "BartConfig", "BartForConditionalGeneration"),
    "electra tokens": partial(configuration, "ElectraConfig", "ElectraForTokenClassification", num_labels=4),
    "deberta regression": partial(
        configuration, "DebertaV2Config", "DebertaV2ForSequenceClassification", num_labels=1, problem_type="regression"
    ),
    "albert multi-label": partial(
        configuration,
        "AlbertConfig",
        "AlbertForSequenceClassification",
        num_labels=5,
        problem_type="multi_label_classification",
    ),
    "llama classifier": partial(
        configuration, "LlamaConfig", "LlamaForSequenceClassification", num_labels=3, pad_token_id=0
    ),
    "bert choices": partial(configuration, "BertConfig", "BertForMultipleChoice"),
    "deit images": partial(configuration, "DeiTConfig", "DeiTForImageClassification", num_labels=7),
}


def row(name: str, make: Callable[[], PreTrainedConfig]) -> tuple[str, bool]:
    """Return a head's line, and whether its promise is kept or its breach is said."""
    with tiny_subject(make(), name, samples_wanted(PLAN)) as subject:
        found = {door: judge(door, PLAN, Trial(subject, opened)) for door, opened in DOORS.items()}
    stock, ours, loop = found.values()
    said = "counts once per micro-batch" in ours.why
    line = f"{name:<20} {stock.norm_ratio:>8.4f}  {_figures(ours)}  {_figures(loop)}" + "  said to be another" * said
    return line, said or (_kept(ours) and _kept(loop))


def _figures(found: Verdict) -> str:
    return f"{found.gradient_diff:>9.1e} {found.norm_ratio:>12.9f}"


def _kept(found: Verdict) -> bool:
    return (found.gradient_diff or 1) <= EXACT and abs((found.norm_ratio or 0) - 1) <= EXACT


def main() -> int:
    """Print a line per head."""
    print(f"{'head':<20} {'stock':>8}  {'exact_accumulation':>22}  {'windows':>22}")
    fine = True
    for name, make in (HEADS | UNLISTED).items():
        line, kept = row(name, make)
        fine &= kept
        print(line, flush=True)
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
