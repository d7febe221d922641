"""A corpus, a tokenizer and a small model that every machine with Python has: recipes run offline with them."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

END, PAD = "<|end|>", "<|pad|>"
VOCABULARY = 4096
FROM_NOTHING = {"max_steps": 100, "learning_rate": 3e-3, "warmup_steps": 10, "per_device_train_batch_size": 8}
"""Fields of TrainingArguments for the small model, which starts from nothing: a minute on two cores."""
EVALUATED = 20
"""Every so many files is kept for evaluation."""


@cache
def sources() -> tuple[str, ...]:
    """Return the texts of the Python standard library's own top-level modules, in alphabetical order.

    Raises ValueError where Python is installed without its sources.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in sorted(folder.glob("*.py"))]
    if len(texts) < 2 * EVALUATED:
        raise ValueError(f"This Python has no sources of its standard library in {folder}: name --data and --model.")
    return tuple(text for text in texts if text.strip())


def corpus() -> tuple[Dataset, Dataset]:
    """Return the sources as training and evaluation datasets with a `text` column, split by file."""
    from datasets import Dataset

    kept = [text for number, text in enumerate(sources()) if number % EVALUATED == 0]
    trained = [text for number, text in enumerate(sources()) if number % EVALUATED != 0]
    return Dataset.from_dict({"text": trained}), Dataset.from_dict({"text": kept})


def tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of 4,096 tokens on the sources; it takes about a second."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus()[0]["text"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=PAD)


def model(vocabulary: int = VOCABULARY) -> PreTrainedModel:
    """Return an untrained Llama of about 5 million parameters in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=1,
        )
    )
