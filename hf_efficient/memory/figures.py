"""Single figures of an estimate, each by a function of its own: the Estimate calls them, and so may you."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hf_efficient.memory.given import dtype_named, one_of, switch, whole
from hf_efficient.memory.optimizers import update
from hf_efficient.memory.quantize import ABSMAX_BLOCK
from hf_efficient.memory.results import GIB
from hf_efficient.memory.saved import loss_bytes, saved_activations
from hf_efficient.memory.sharing import bucket_bytes, zero3_states_gib, zero_states
from hf_efficient.memory.weights import Weight

__all__ = [
    "bucket_bytes",
    "kept_logits_gib",
    "logits_bytes",
    "logits_gib",
    "loss_bytes",
    "loss_logits_gib",
    "optimizer_state_mib",
    "quantised_weight_bytes",
    "resume_copy_gib",
    "saved_activations",
    "state_bytes",
    "zero3_states_gib",
    "zero_states",
]
MIB = 2**20
SIDE = 1024
"""Columns of the matrices by which a number of parameters is represented."""
ALL_TENSORS = {
    "bitsandbytes AdamW8bit, all tensors": "adamw_8bit",
    "bitsandbytes AdEMAMix8bit, all tensors": "ademamix_8bit",
    "bitsandbytes Lion8bit, all tensors": "lion_8bit",
    "bitsandbytes RMSprop8bit, all tensors": "rmsprop_bnb_8bit",
}
"""bitsandbytes by itself, without Trainer's exception for embeddings."""
BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Elements per scale that bitsandbytes' quantize_4bit takes."""


def logits_bytes(rows: int, seq_len: int, vocab_size: int, dtype: str) -> int:
    """Return the bytes of the logits of `rows` rows of `seq_len` tokens."""
    counts = {"rows": rows, "seq_len": seq_len, "vocab_size": vocab_size}
    size = dtype_named(dtype).itemsize
    for name, value in counts.items():
        size *= whole(name, value)
    return size


def logits_gib(batch_size: int, seq_len: int, vocab_size: int, dtype: str) -> float:
    """Return the GiB of one batch's logits, as the model returns them."""
    return logits_bytes(whole("batch_size", batch_size), seq_len, vocab_size, dtype) / GIB


def kept_logits_gib(rows: int, seq_len: int, vocab_size: int, logits_dtype: str) -> float:
    """Return the GiB of logits that Trainer's evaluation keeps until the metrics are computed.

    Of all `rows` of the evaluation set; where `preprocess_logits_for_metrics` reduces them there are none. Source:
    Trainer.evaluation_loop, which gathers them in an EvalLoopContainer.
    """
    return logits_bytes(rows, seq_len, vocab_size, logits_dtype) / GIB


def loss_logits_gib(tokens: int, vocab_size: int, dtype: str, labels: bool) -> tuple[float, float]:
    """Return the GiB of one micro-batch's logits, and of the float32 copy that the loss makes of them.

    There is no copy without labels, nor of logits that are float32 already. Source: ForCausalLMLoss in
    transformers/loss/loss_utils.py; what the loss keeps besides is in `loss_bytes`.
    """
    logits = logits_bytes(whole("tokens", tokens), 1, vocab_size, dtype)
    copied = switch("labels", labels) and dtype_named(dtype).itemsize < 4
    return logits / GIB, logits_bytes(tokens, 1, vocab_size, "float32") / GIB if copied else 0.0


def state_bytes(load_dtype: str, optim: str) -> float:
    """Return the bytes per parameter of weights, gradients and optimizer state when all weights are trained.

    `load_dtype` is the dtype in which `from_pretrained` loads them and `optim` a name of transformers; gradients have
    the weights' dtype, and torch's AdamW keeps its moments in it. Of a matrix of 1,024 x 1,024.
    """
    dtype = dtype_named(load_dtype)
    return 2 * dtype.itemsize + round(_state(SIDE * SIDE, optim, dtype) / SIDE**2, 3)


def optimizer_state_mib(params: int, embedding_params: int, optimizer: str) -> float:
    """Return the MiB of optimizer state of a float32 model of `params` parameters.

    `embedding_params` of them are embeddings. `optimizer`: a name of transformers, as in `optim=`, with or without
    `Trainer optim=` before it; or `bitsandbytes AdamW8bit, all tensors` (AdEMAMix8bit, Lion8bit, RMSprop8bit) for
    bitsandbytes without Trainer, which would keep the embeddings in 32 bits. Paged state counts. Parameters are taken
    as one matrix of 1,024 columns.
    """
    params, embedding = whole("params", params), whole("embedding_params", embedding_params, 0)
    if embedding > params:
        raise ValueError(f"embedding_params={embedding} is more than params={params}: count all parameters in params.")
    name = str(optimizer).removeprefix("Trainer optim=")
    if name in ALL_TENSORS:
        embedding, name = 0, ALL_TENSORS[name]
    return _state(params - embedding, name, torch.float32, embedding) / MIB


def resume_copy_gib(params: int, dtype: str, optim: str) -> tuple[float, float]:
    """Return the GiB of weights and of optimizer state that a checkpoint loaded to the card, and kept, takes once more.

    Of a hand-written loop that loads with `map_location="cuda"` and lets the dictionary live.
    """
    given, params = dtype_named(dtype), whole("params", params)
    return params * given.itemsize / GIB, _state(params, optim, given) / GIB


def _state(params: int, optim: str, dtype: torch.dtype, embedding: int = 0) -> int:
    """Return the bytes of an optimizer's state, paged or not, by the rules for single tensors."""
    weights = [*_tensors(params, dtype, embedding=False), *_tensors(embedding, dtype, embedding=True)]
    made = update(optim, weights, mode=FakeTensorMode())
    return made.state + made.host


def _tensors(params: int, dtype: torch.dtype, *, embedding: bool) -> list[Weight]:
    """Return a matrix of 1,024 columns and a vector of what is left over."""
    rows, rest = divmod(params, SIDE)
    shapes: list[tuple[int, ...]] = [(rows, SIDE)] * bool(rows) + [(rest,)] * bool(rest)
    return [Weight(shape, dtype, embedding) for shape in shapes]


def quantised_weight_bytes(quant_type: str, blocksize: int, double_quant: bool, world_size: int) -> float:
    """Return the bytes per quantised parameter on each of `world_size` ranks, which all hold the whole of it.

    Four bits and a float32 scale per block, or with double quantization a byte per block and a float32 scale per 256 of
    them; `int8` (LLM.int8) has a byte, and a scale per row that is left out. Embeddings, head and norms are as loaded.
    Source: quantize_4bit in bitsandbytes/functional.py; transformers partitions no quantised weights under ZeRO-3.
    """
    whole("world_size", world_size)
    block, nested = one_of("blocksize", blocksize, BLOCKS), switch("double_quant", double_quant)
    if one_of("quant_type", quant_type, ("nf4", "fp4", "int8")) == "int8":
        return 1.0
    return 0.5 + ((1 + 4 / ABSMAX_BLOCK) if nested else 4) / int(block)
