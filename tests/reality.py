"""Real training steps on this CPU under torch's MemTracker, and the same steps traced without data.

Ten architectures of 20 to 40 million parameters, each under six plans. A `wide` batch makes activations or logits the
highest moment, a `narrow` one the optimizer's step. Two of the models are deep enough that their traces are short ones,
extended. Both sides are in bytes; the traced side rounds each tensor up to 512 of them, as CUDA's allocator does, which
is most of what is left between the two.

The mixture of experts computes by grouped products, transformers' default here as on a GPU: what they keep depends on
the number of tokens alone, and not on which expert a router sends them to.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import transformers as tf
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.mod_tracker import ModTracker

import hf_efficient as hf
from hf_efficient.emit.model import model_keywords
from hf_efficient.memory.build import dtype_of
from hf_efficient.memory.estimate import on_cpu
from hf_efficient.memory.inputs import batch_for
from hf_efficient.memory.results import Batch, Timeline
from hf_efficient.plan import Plan
from hf_efficient.promises.tiny import head_class

LIMIT = 0.02
"""Most that a traced peak may differ from the real one."""
LEAST, MOST = 20_000_000, 40_000_000
"""Parameters of a model."""


class Way(NamedTuple):
    """One of the six plans."""

    tricks: tuple[str, ...]
    wide: bool = True
    stored: str = "float32"
    """Dtype of the checkpoint, in which a plan loads it unless it asks for another."""


WAYS = {
    "adamw": Way(("adamw_fused", "gradient_clipping")),
    "bf16": Way(("bf16", "adamw_fused", "gradient_clipping")),
    "checkpointing": Way(("bf16", "activation_checkpointing", "adamw_fused")),
    "lora": Way(("lora", "bf16", "activation_checkpointing", "gradient_clipping"), stored="bfloat16"),
    "accumulation": Way(("schedule_free", "gradient_accumulation(2)", "gradient_clipping"), wide=False),
    "adafactor": Way(("attention('eager')", "gradient_accumulation(2)", "adafactor")),
}


class Architecture(NamedTuple):
    """A model of 20 to 40 million parameters and two batches for it."""

    config: Callable[[], Any]
    wide: Batch
    narrow: Batch


LLAMA = {"vocab_size": 16384, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
         "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}  # fmt: skip
BERT = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8}
VISION = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 6,
          "image_size": 112, "patch_size": 16}  # fmt: skip


def _llava() -> Any:
    text = tf.LlamaConfig(**LLAMA | {"num_hidden_layers": 3})
    return tf.LlavaConfig(
        vision_config=tf.CLIPVisionConfig(**VISION),
        text_config=text,
        image_token_index=16383,
        vision_feature_layer=-1,
        image_seq_length=49,
    )


def _whisper() -> Any:
    return tf.WhisperConfig(vocab_size=10000, num_mel_bins=80, d_model=384, encoder_layers=5, decoder_layers=4,
                            encoder_attention_heads=6, decoder_attention_heads=6, encoder_ffn_dim=1536,
                            decoder_ffn_dim=1536, max_source_positions=200, pad_token_id=0, bos_token_id=1,
                            eos_token_id=2, decoder_start_token_id=1)  # fmt: skip


ARCHITECTURES = {
    "llama of 28 layers": Architecture(
        lambda: tf.LlamaConfig(**LLAMA | {"hidden_size": 256, "num_hidden_layers": 28, "intermediate_size": 768,
                                          "num_attention_heads": 4, "num_key_value_heads": 2}),
        Batch(size=2, seq_len=128), Batch(size=1, seq_len=16),
    ),
    "gpt2": Architecture(
        lambda: tf.GPT2Config(vocab_size=8192, n_embd=512, n_layer=6, n_head=8, n_positions=512),
        Batch(size=4, seq_len=192), Batch(size=1, seq_len=16),
    ),
    "gemma2 of 26 layers": Architecture(
        lambda: tf.Gemma2Config(**LLAMA | {"hidden_size": 256, "num_hidden_layers": 26, "intermediate_size": 768,
                                           "num_attention_heads": 4, "num_key_value_heads": 2}, sliding_window=64),
        Batch(size=2, seq_len=128), Batch(size=1, seq_len=16),
    ),
    "bert": Architecture(
        lambda: tf.BertConfig(vocab_size=8192, **BERT | {"num_hidden_layers": 6}),
        Batch(size=4, seq_len=192, padding=True), Batch(size=1, seq_len=16),
    ),
    "modernbert": Architecture(
        lambda: tf.ModernBertConfig(vocab_size=16384, **BERT | {"intermediate_size": 1024, "num_hidden_layers": 5},
                                    num_labels=3, pad_token_id=0, cls_token_id=1, sep_token_id=2,
                                    bos_token_id=1, eos_token_id=2,
                                    architectures=["ModernBertForSequenceClassification"]),
        Batch(size=8, seq_len=256, padding=True), Batch(size=1, seq_len=16),
    ),
    "t5": Architecture(
        lambda: tf.T5Config(vocab_size=8192, d_model=512, d_kv=64, d_ff=2048, num_layers=4, num_heads=8, pad_token_id=0,
                            decoder_start_token_id=0),
        Batch(size=4, seq_len=192, target_len=128), Batch(size=1, seq_len=16),
    ),
    "vit": Architecture(
        lambda: tf.ViTConfig(**VISION | BERT | {"num_hidden_layers": 7}, num_labels=100),
        Batch(size=24), Batch(size=1),
    ),
    "whisper": Architecture(_whisper, Batch(size=4, target_len=96), Batch(size=1, target_len=4)),
    "llava": Architecture(_llava, Batch(size=4, seq_len=192), Batch(size=1, seq_len=64)),
    "qwen3 moe": Architecture(
        lambda: tf.Qwen3MoeConfig(**LLAMA | {"num_hidden_layers": 3}, moe_intermediate_size=256, num_experts=8,
                                  num_experts_per_tok=2, norm_topk_prob=True),
        Batch(size=4, seq_len=192), Batch(size=1, seq_len=16),
    ),
}  # fmt: skip


class Compared(NamedTuple):
    """A real step and a traced one."""

    real: int
    """Bytes at the highest moment, by MemTracker."""
    traced: Timeline
    params: int
    """Of the model, without an adapter."""

    @property
    def peak(self) -> int:
        """Return the bytes at the traced peak."""
        return self.traced.live()[self.traced.peak]

    @property
    def error(self) -> float:
        """Return how much higher the traced peak is, as a share of the real one."""
        return self.peak / self.real - 1

    @property
    def where(self) -> str:
        """Return where the peak lies: `optimizer`, `activations` (logits are among them), or `gradients`."""
        at = self.traced.peak
        if self.traced.phases[at] == "optimizer":
            return "optimizer"
        held = {part: column[at] for part, column in self.traced.parts.items()}
        passing = held["activations"] + held["logits"]
        return "activations" if passing > max(held["gradients"], held["temporary"]) else "gradients"


def compare(architecture: str, way: str) -> Compared:
    """Take a step for real and trace it."""
    made, how = ARCHITECTURES[architecture], WAYS[way]
    batch = made.wide if how.wide else made.narrow
    plan = hf.make_plan(*how.tricks)
    config = made.config()
    for part in (config, config.get_text_config()):
        part.dtype = how.stored
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = on_cpu(plan, config, batch)
        _fresh_accelerator()
        model = real_model(plan, config)
        params = sum(parameter.numel() for parameter in model.parameters())
        return Compared(real_peak(plan, model, batch), traced, params)


def _fresh_accelerator() -> None:
    """Forget the plan of the step before."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class Tracker(MemTracker):
    """MemTracker without its hooks on modules, which only sort bytes by module and by kind; the total needs none.

    In torch 2.13 they fail on frozen weights ("cannot register a hook on a tensor that doesn't require gradient"), look
    at every module after every operation, and hold the gradient of one input of a module until its others have theirs:
    with them a checkpointed T5 took 0.54 % more than without.
    """

    def __init__(self) -> None:
        super().__init__()
        self._mod_tracker = _NoHooks()


class _NoHooks(ModTracker):
    def __enter__(self) -> _NoHooks:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def real_peak(plan: Plan, model: Any, batch: Batch) -> int:
    """Return the most bytes that live at once in the second step of a real training on this CPU."""
    torch.manual_seed(0)
    accelerator = hf.make_accelerator(plan)
    model = hf.prepare_model(plan, model)
    optimizer: Any = hf.make_optimizer(plan, model)
    model, optimizer = accelerator.prepare(model.train(), optimizer)
    optimizer.train()  # schedule_free asks for it
    first, second = (real_batch(accelerator.unwrap_model(model), each) for each in (replace(batch, size=1), batch))
    accelerator.backward(model(**first).loss)
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()
    tracker = Tracker()
    tracker.track_external(model, optimizer.optimizer)
    with tracker:
        for _ in range(accelerator.gradient_accumulation_steps):
            accelerator.backward(model(**second).loss)
        hf.clip(plan, accelerator, model)
        optimizer.step()
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


def real_model(plan: Plan, config: Any) -> nn.Module:
    """Return the model with random weights, loaded as the plan says."""
    keywords = model_keywords(plan)
    dtype = dtype_of(keywords.pop("dtype", None), config)
    model: nn.Module = head_class(config)._from_config(config, dtype=dtype, **keywords)
    return model


def real_batch(model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
    """Return the traced batch with data in it: tokens at random, so that a router has something to choose by."""
    made = {}
    for name, tensor in batch_for(model, batch).items():
        value = getattr(tensor, "_value", tensor)
        if value.is_floating_point():
            value = torch.randn(value.shape, dtype=value.dtype)
        elif name in ("input_ids", "labels") and value.ndim == 2 and not value.any():
            value = torch.randint(3, 1000, value.shape)
        made[name] = value
    return made
