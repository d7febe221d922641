"""Noise on the embeddings."""

from __future__ import annotations

from typing import Annotated

from hf_efficient.spelling import AtLeast, spelled
from hf_efficient.trick import FunctionCall, Trick


@spelled
def neftune(noise_alpha: Annotated[float, AtLeast(0.01)] = 5.0) -> Trick:
    """Add uniform noise to the embeddings while training, so that a short instruction tuning generalises better.

    The noise lies within noise_alpha / sqrt(length x dimension), where length is the padded length of the batch.
    Use it when you fine-tune a language model on instructions and judge it by its answers; the paper takes 5 to 15.

    Not for pretraining, nor with packing, whose long rows shrink the noise. Evaluation is without noise: it is added
    in training mode only. Trainer takes its noise away at the end; a hand-written loop's model keeps it, asleep, until
    it is saved and loaded again. Let Trainer do it alone: `prepare_model` before Trainer would add the noise twice.

    Published: LLaMA-2-7B on Alpaca wins 64.69 instead of 29.79 % on AlpacaEval, and 8 to 10 % more on Evol-Instruct,
    ShareGPT and OpenPlatypus (Jain et al., arXiv 2310.05914); nothing in memory or time.
    """
    return Trick(
        family="noise",
        saves="epochs: more is learned from the same instructions",
        costs="training losses that are no longer comparable with those of a run without noise",
        numerics="different",
        shows=("noise",),
        trainer={"neftune_noise_alpha": noise_alpha},
        prepare=FunctionCall(
            "transformers.integrations.neftune.activate_neftune", {"neftune_noise_alpha": noise_alpha}
        ),
    )
