"""What every test shares: a tiny model on disk, its rows, and a process that tests cannot spoil for each other."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

# Before torch is imported: models this small are slower on several threads, and much slower on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True, scope="session")
def _no_garbage_of_imports() -> None:
    """Leave the imports out of garbage collection: Trainer collects after each run, 0.27 s with them, else 0.01 s."""
    import transformers.trainer  # noqa: F401  its objects are among the frozen

    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _no_garbage_of_earlier_files() -> None:
    """Leave out what was imported late by the tests of earlier files, too."""
    gc.freeze()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a two-layer Llama of 64 dimensions and a word tokenizer of 128 words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

    folder = tmp_path_factory.mktemp("tiny")
    words = {word: number for number, word in enumerate(["<pad>", "<unk>", "<end>", *(f"w{i}" for i in range(125))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<end>"
    ).save_pretrained(folder)
    set_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def config_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Makes a folder with nothing but the configuration of a head of the matrix."""

    def make(head: str) -> str:
        from hf_efficient.promises.heads import HEADS

        path = tmp_path_factory.mktemp(head)
        HEADS[head]().save_pretrained(path)
        return str(path)

    return make


@pytest.fixture(scope="session")
def rows() -> list[dict[str, Any]]:
    """Sixty-four rows of sixteen tokens; labels are the tokens, and nothing is padded."""
    import torch

    tokens = torch.randint(3, 128, (64, 16), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row.clone()} for row in tokens]


@pytest.fixture(autouse=True)
def _fresh_process() -> Iterator[None]:
    """Put back what a plan sets for the whole process: environment, accelerate, DeepSpeed, torch."""
    import sys

    with patch.dict(os.environ):
        yield
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    if "transformers.integrations.deepspeed" in sys.modules:
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config

        unset_hf_deepspeed_config()
    if "torch" in sys.modules:
        import torch

        from hf_efficient.emit import process

        process._SWITCHED.clear()
        process._VARIABLES.clear()
        torch.backends.fp32_precision = "none"
