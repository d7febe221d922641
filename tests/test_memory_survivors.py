"""What a wrong change to the estimate would slip by: overrides of yours, modules of yours, ranks, CUDA's lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from hf_efficient import Batch, estimate, make_plan
from hf_efficient.memory.kernels import attention
from hf_efficient.memory.like_cuda import LikeCuda
from hf_efficient.memory.record import Recorder
from hf_efficient.memory.results import GIB, Estimate
from hf_efficient.memory.stacks import stacks
from hf_efficient.plan import Plan

pytestmark = pytest.mark.launch  # seconds in all
BATCH = Batch(size=2, seq_len=64)


def small(layers: int = 2) -> LlamaConfig:
    """Return a small Llama."""
    return LlamaConfig(
        vocab_size=1024, hidden_size=128, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2,
        num_hidden_layers=layers, architectures=["LlamaForCausalLM"],
    )  # fmt: skip


def of(*names: str, model: Any = None, batch: Batch = BATCH, gpus: int = 1) -> Estimate:
    """Estimate a plan on a small Llama."""
    return estimate(make_plan(*names), model or small(), batch=batch, gpus=gpus)


def yours(*names: str, **fields: Any) -> Plan:
    """Return a plan with fields of Trainer that you set."""
    return make_plan(*names).override("trainer", fields, by="you")


SAME = {
    "optimizer": (yours("bf16", "adamw_8bit", optim="adamw_torch"), yours("bf16", optim="adamw_torch")),
    "no autocast": (yours("bf16", bf16=False), make_plan().override("model", {"dtype": "float32"}, by="you")),
    "no clipping": (yours("bf16", max_grad_norm=None), yours("bf16", max_grad_norm=0)),
    "old name of checkpointing": (
        yours("bf16", gradient_checkpointing=True), yours("bf16", activation_checkpointing=True),
    ),
    "Liger's own choice": (yours("bf16", use_liger_kernel=True), make_plan("bf16", "fused_loss")),
}  # fmt: skip


@pytest.mark.parametrize("what", SAME)
def test_what_you_set_for_trainer_wins(what: str) -> None:
    """A field of TrainingArguments that you set decides, whatever a trick says to Accelerator or to a loop."""
    one, other = (estimate(plan, small(4), batch=BATCH) for plan in SAME[what])
    assert one.moments == other.moments


def test_the_arguments_of_an_optimizer_count() -> None:
    """SGD with momentum, asked for in optim_args, has one state per weight."""
    found = estimate(yours(optim="sgd", optim_args="momentum=0.9"), small(), batch=BATCH)
    assert found.breakdown["optimizer"] * GIB == pytest.approx(4 * found.params, rel=0.01)


def test_smoothed_labels_are_an_assumption() -> None:
    """Trainer computes the smoothed loss outside the model, and that is said."""
    found = estimate(yours(label_smoothing_factor=0.1), small(), batch=BATCH)
    assert any("Smoothing of labels" in sentence for sentence in found.assumptions)


def test_a_module_that_checkpoints_itself_does_so() -> None:
    """What activation_checkpointing_enable switched on stays on without the trick, and the module stays as it is."""
    module = LlamaForCausalLM(small(4))
    module.activation_checkpointing_enable({"use_reentrant": False})
    before = module.model.layers[0]._gradient_checkpointing_func
    assert of("bf16", model=module).moments == of("bf16", "activation_checkpointing", model=small(4)).moments
    assert module.model.layers[0]._gradient_checkpointing_func is before


def test_layers_that_share_weights_are_all_traced() -> None:
    """A shorter stack would count the one gradient of a shared weight once per layer."""
    module = LlamaForCausalLM(small(16))
    for one, other in zip(module.model.layers[:8], module.model.layers[8:], strict=True):
        other.mlp = one.mlp
    assert not stacks(module)
    found = of("adafactor", model=module)
    gradients = max(found.timeline.parts["gradients"])
    assert gradients == pytest.approx(4 * found.params, rel=0.01)


def test_a_hook_on_one_layer_is_seen() -> None:
    """Layers with hooks of their own are not alike."""
    module = LlamaForCausalLM(small(16))
    assert stacks(module)
    module.model.layers[7].mlp.register_forward_hook(lambda *_: None)
    assert not stacks(module)


HIGH = {
    "rms_norm": lambda x: F.rms_norm(x, (8,)),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "log_softmax": lambda x: x.log_softmax(-1),
    "pow": lambda x: x.pow(2),
    "logsumexp": lambda x: x.logsumexp(-1),
    "vector_norm": torch.linalg.vector_norm,
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0),
}
LOW = {"gelu": F.gelu, "silu": F.silu, "mean": torch.Tensor.mean, "relu": torch.relu, "matmul": lambda x: x @ x.mT}


@pytest.mark.parametrize("name", [*HIGH, *LOW])
def test_autocast_has_cudas_lists(name: str) -> None:
    """What CUDA computes in float32 comes out in it, and nothing else: ATen's autocast_mode.h, AT_FORALL_FP32."""
    x = torch.ones(2, 8, 8, dtype=torch.bfloat16)
    with LikeCuda(), torch.autocast("cpu", dtype=torch.bfloat16):
        out = (HIGH | LOW)[name](x)
    assert out.dtype == (torch.float32 if name in HIGH else torch.bfloat16)


def test_a_weight_is_cast_once() -> None:
    """Autocast keeps one copy of a trained weight for all its uses, and dropout a mask of one byte each."""
    weight, x = nn.Parameter(torch.ones(256, 256)), torch.ones(256, 256, dtype=torch.bfloat16)
    recorder = Recorder()
    recorder.know([weight, x])
    with recorder, LikeCuda(), torch.autocast("cpu", dtype=torch.bfloat16):
        out = [F.linear(x, weight), F.linear(x, weight)]
    made = [event.size for event in recorder.events if event.size > 0]
    assert len(out) == 2
    assert made == [2 * 256 * 256] * 3
    recorder = Recorder()
    with recorder, LikeCuda():
        F.dropout(torch.ones(256, 256, requires_grad=True), 0.5)
    assert 256 * 256 in [event.size for event in recorder.events]


def _backward_peak(q_heads: int, k_heads: int) -> int:
    q, k, v = (
        torch.ones(1, heads, 64, 64, dtype=torch.bfloat16, requires_grad=True) for heads in (q_heads, k_heads, k_heads)
    )
    out = attention(q, k, v).sum()
    recorder = Recorder()
    with recorder:
        torch.autograd.backward(out)
        events = list(recorder.events)
    live = top = 0
    for event in events:
        live += event.size
        top = max(top, live)
    return top


def test_flash_attention_sums_in_float32_and_repeats_grouped_gradients() -> None:
    """The gradient of q passes in float32; grouped keys and values get a gradient per query head in passing."""
    one = 8 * 64 * 64 * 2
    assert _backward_peak(8, 8) >= one + 2 * one + 3 * one  # of the output, in float32, the three
    assert _backward_peak(8, 2) >= one + 2 * one + 2 * one + one + 2 * one // 4


@pytest.mark.parametrize("gpus", [2, 4])
def test_ddp_and_resume_count_ranks(gpus: int) -> None:
    """DDP keeps a second copy of the gradients, and each rank reads its optimizer state to its card to go on."""
    one, several = of("bf16"), of("bf16", gpus=gpus)
    assert (several.allocated_gib - one.allocated_gib) * GIB == pytest.approx(4 * one.params, rel=0.01)
    assert (several.moments["resume"] - one.moments["resume"]) * GIB == pytest.approx(12 * one.params, rel=0.02)


def test_an_accumulated_gradient_is_there_from_the_start() -> None:
    """With accumulation the forward pass has 4 bytes more per trained weight."""
    one, several = of("bf16"), of("bf16", "gradient_accumulation(2)")
    more = (several.moments["forward"] - one.moments["forward"]) * GIB
    assert more == pytest.approx(4 * one.params, rel=0.01)


def test_zero_divides_by_ranks() -> None:
    """From one rank to three, two thirds of 12 bytes per weight leave, and of stage 3's float32 gradients too."""
    one, three = (of("bf16", "zero(2)", gpus=gpus) for gpus in (1, 3))
    less = (one.breakdown["optimizer"] - three.breakdown["optimizer"]) * GIB
    assert less == pytest.approx(8 * one.params, rel=0.01)
    assert (one.moments["optimizer"] - one.moments["resume"]) * GIB >= 4 * one.params


def test_zero_3_keeps_gathered_what_is_used_again() -> None:
    """Without reuse and prefetching only small weights stay gathered; with all of it every one does."""
    far, near = (
        estimate(
            make_plan("bf16", "zero(3)").override(
                "deepspeed",
                {
                    f"zero_optimization.{key}": value
                    for key, value in {"stage3_max_reuse_distance": reuse, "stage3_prefetch_bucket_size": 0}.items()
                },
                by="you",
            ),
            small(),
            batch=BATCH,
            gpus=4,
        )
        for reuse in (10**9, 0)
    )
    assert (far.moments["forward"] - near.moments["forward"]) * GIB == pytest.approx(2 * far.params, rel=0.03)


def test_an_evaluation_has_no_more_rows_than_there_are() -> None:
    """An evaluation set smaller than a batch is one batch; several ranks gather each other's logits."""
    few, exact = (
        of("bf16", batch=Batch(size=1, seq_len=64, eval_size=size, eval_rows=2)).moments["evaluation"]
        for size in (64, 2)
    )
    assert few == exact
    batch = Batch(size=1, seq_len=64, eval_size=4, eval_rows=1000)
    alone, together = (of("bf16", "evaluation", batch=batch, gpus=gpus) for gpus in (1, 8))
    each, copies = 4 * 64 * 1024 * 4 / GIB, 4 * alone.params / GIB
    assert together.moments["evaluation"] - alone.moments["evaluation"] > copies + 4 * each


def test_kept_logits_are_twice_there_when_joined() -> None:
    """Joining a batch's logits to those before it holds both for a moment."""
    batch = Batch(size=1, seq_len=64, eval_size=4, eval_rows=1000)
    found = of("bf16", batch=batch)
    kept = 1000 * 64 * 1024 * 4 / GIB
    assert found.moments["evaluation"] - found.moments["resume"] >= 1.99 * kept


@pytest.mark.parametrize("gpus", [1.5, True, "2", 0])
def test_gpus_are_whole(gpus: Any) -> None:
    """A number of GPUs is a whole one."""
    with pytest.raises(ValueError, match="no number of GPUs"):
        of("bf16", gpus=gpus)


def test_attention_within_torchs_own_module_is_flash() -> None:
    """nn.MultiheadAttention calls the kernel from inside, and keeps no square of the length there either."""
    layer, x = nn.MultiheadAttention(64, 4, dropout=0.1, batch_first=True), torch.ones(1, 256, 64, requires_grad=True)
    recorder = Recorder()
    with recorder, LikeCuda(), torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x, x, x, need_weights=False)
    assert out[0].shape == x.shape
    assert all(event.shape[-2:] != (256, 256) for event in recorder.events)
