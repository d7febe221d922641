"""The tokenizer and the causal language model of a recipe, from the Hub, a folder or made here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hf_efficient.emit.model import model_keywords
from hf_efficient.plan import Plan
from hf_efficient.train import embedded
from hf_efficient.wording import one_sentence

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ROW = 512
"""Tokens of a row by default; long enough for most texts, short enough for most cards."""
EMBEDDED_ROW = 128


def load_causal_lm(name: str | None, plan: Plan) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Return tokenizer and model by Hub id or folder, or the small Llama that is made here.

    Build the TrainingArguments or the Accelerator before: ZeRO-3 shards weights while they load. The weights have the
    dtype that the plan names (bf16 and fp16 ask for float32), else that of the checkpoint; quantization and attention
    kernel are the plan's too. A tokenizer without a
    padding token pads with its end token; labels are padded by themselves, so the end is still learned.

    Raises ValueError when nothing of that name can be loaded, and for an adapter without a pretrained model.
    """
    if name is None and plan["peft"]:
        raise ValueError(f"{plan.author('peft', 'r')} trains adapters on a pretrained model: name one with --model.")
    if name is None:
        tokenizer = embedded.tokenizer()
        return tokenizer, embedded.model(len(tokenizer))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
        raise ValueError(f"There is no folder {name}: check --model.")
    name = str(Path(name).expanduser()) if name.startswith("~") else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(name, **model_keywords(plan))
    except Exception as error:  # whatever the readers of configurations, weights and tokenizers raise
        raise ValueError(f"Cannot load the model {name}: {one_sentence(error)[:500]}") from None
    known = getattr(model.get_input_embeddings(), "num_embeddings", 0)
    if len(tokenizer) > known > 0:
        raise ValueError(
            f"The tokenizer of {name} has {len(tokenizer)} tokens and the model {known} embeddings: "
            "they do not belong together, or the model was not resized after tokens were added."
        )
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ValueError(
                f"The tokenizer of {name} has neither a padding nor an end token: set one of them and save it."
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, model


def row_length(asked: int | None, model: PreTrainedModel, *, embedded: bool) -> int:
    """Return the tokens of a row: what was asked for, else 512 (128 for the small Llama) or the model's own limit.

    Raises ValueError for more than the model has positions.
    """
    limit = getattr(model.config, "max_position_embeddings", None) or ROW
    if asked and asked > limit:
        raise ValueError(f"--seq-len {asked} is more than the {limit} positions of the model: take {limit} at most.")
    return asked or min(EMBEDDED_ROW if embedded else ROW, limit)
