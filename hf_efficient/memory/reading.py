"""Plan -> what a training step does: the facts that decide its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_efficient.plan import Plan

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Environment variables that set up the caching allocator; the second is its name since torch 2.9."""
FLASH = ("flash", "kernels-community/")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a plan says of a training step; where it is silent, what Trainer does."""

    autocast: str | None = None
    """`bfloat16`, `float16` or None."""
    dtype: str | None = None
    """Of the weights as loaded; None: as the checkpoint has them."""
    attention: str | None = None
    checkpointing: Mapping[str, Any] | None = None
    """`every_n_layers`, `offload` and `reentrant`; None: every activation is kept."""
    accumulation: int = 1
    max_grad_norm: float = 1.0
    optimizer: Mapping[str, Any] = field(default_factory=lambda: {"name": "adamw_torch_fused"})
    kernels: Mapping[str, bool] = field(default_factory=dict)
    """Liger's kernels that are on."""
    quantization: Mapping[str, Any] = field(default_factory=dict)
    packed: bool = False
    """The rows of a batch become one row, and positions restart with each."""
    engine: str = "NO"
    zero: Mapping[str, Any] = field(default_factory=dict)
    fsdp: Mapping[str, Any] = field(default_factory=dict)
    eval_size: int = 8
    """Trainer's own default of `per_device_eval_batch_size`."""
    kept_on_host_every: int | None = None
    """Evaluation batches after which logits leave the card; None: they stay."""
    tf32: bool = False
    """Products of float32 are computed in TF32."""
    compiled: bool = False
    """torch.compile makes the kernels."""
    expandable: bool = False
    """The caching allocator's segments grow."""
    assumptions: tuple[str, ...] = ()

    @property
    def flash(self) -> bool:
        """Say whether FlashAttention's own package computes attention."""
        return (self.attention or "").startswith(FLASH)


def read(plan: Plan) -> Run:
    """Return what a training step under `plan` does, with Trainer or with our loop, which agree."""
    trainer, accelerator, model = plan["trainer"], plan["accelerator"], plan["model"]
    mixed = _mixed(plan)
    _require_one_precision(model, mixed)
    return Run(
        autocast={"bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"}.get(mixed or ""),
        dtype=model.get("dtype"),
        attention=model.get("attn_implementation"),
        checkpointing=_checkpointing(trainer, trainer.get("fsdp_config", {}) if plan.engine == "FSDP" else {}),
        accumulation=int(
            trainer.get("gradient_accumulation_steps") or accelerator.get("gradient_accumulation_steps", 1)
        ),
        max_grad_norm=float(trainer.get("max_grad_norm", 1.0) or 0.0),
        optimizer={"name": "adamw_torch_fused"} | _optimizer(plan),
        kernels=_liger(trainer),
        quantization=model.get("quantization_config") or {},
        packed=bool(plan["collator"].get("padding_free")),
        engine=plan.engine,
        zero=plan["deepspeed"].get("zero_optimization", {}) if plan.engine == "DEEPSPEED" else {},
        fsdp=trainer.get("fsdp_config", {}) if plan.engine == "FSDP" else {},
        eval_size=int(trainer.get("per_device_eval_batch_size", 8)),
        kept_on_host_every=trainer.get("eval_accumulation_steps"),
        tf32=bool(trainer.get("tf32")),
        expandable=any("expandable_segments:True" in str(plan["env"].get(name, "")) for name in ALLOCATOR),
        compiled=bool(trainer.get("torch_compile") or accelerator.get("dynamo_plugin")),
        assumptions=tuple(_assumptions(plan, mixed)),
    )


def _yours(plan: Plan, *fields: str) -> bool:
    return any(plan.author("trainer", name) == "you" for name in fields)


def _mixed(plan: Plan) -> str | None:
    """Return the mixed precision; what you set for Trainer wins over what a trick sets for Accelerator."""
    asked = next((p for p in ("bf16", "fp16") if plan["trainer"].get(p)), None)
    return asked if _yours(plan, "bf16", "fp16") else plan["accelerator"].get("mixed_precision") or asked


def _optimizer(plan: Plan) -> dict[str, Any]:
    """Return the optimizer; what you set for Trainer wins over what a trick sets for a loop."""
    fields = {"name": "optim", "args": "optim_args", "target_modules": "optim_target_modules"}
    if plan["optimizer"] and not _yours(plan, *fields.values()):
        return dict(plan["optimizer"])
    return {key: plan["trainer"][name] for key, name in fields.items() if plan["trainer"].get(name)}


def _liger(trainer: Mapping[str, Any]) -> dict[str, bool]:
    """Return Liger's kernels that are on; those that nobody names are on as well, but for its plain loss."""
    if not trainer.get("use_liger_kernel"):
        return {}
    stock = dict.fromkeys(("fused_linear_cross_entropy", "rope", "rms_norm", "layer_norm", "swiglu", "geglu"), True)
    return {name: True for name, on in (stock | (trainer.get("liger_kernel_config") or {})).items() if on}


def _checkpointing(trainer: Mapping[str, Any], sharing: Mapping[str, Any]) -> Mapping[str, Any] | None:
    names = ("activation_checkpointing", "gradient_checkpointing")  # the second is the old name, which still works
    if not any(trainer.get(name) for name in names) and not sharing.get("activation_checkpointing"):
        return None
    asked: Mapping[str, Any] = next((found for name in names if (found := trainer.get(f"{name}_kwargs"))), {})
    return {
        "every_n_layers": asked.get("every_n_layers", 1),
        "offload": asked.get("offload", False),
        "reentrant": asked.get("use_reentrant", bool(asked)),  # arguments without it select the reentrant kind
    }


def _require_one_precision(model: Mapping[str, Any], mixed: str | None) -> None:
    """Raise ValueError for 4-bit weights that compute in another 16-bit dtype than autocast: torch joins no two."""
    how = model.get("quantization_config") or {}
    compute = str(how.get("bnb_4bit_compute_dtype", "")).removeprefix("torch.")
    other = {"fp16": "bfloat16", "bf16": "float16"}.get(mixed or "")
    if how.get("load_in_4bit") and compute == other:
        raise ValueError(
            f"{mixed} casts to one 16-bit dtype and the 4-bit weights compute in the other ({compute}), which torch "
            f"cannot join: write qlora(compute_dtype={'float16' if mixed == 'fp16' else 'bfloat16'!r})."
        )


def _assumptions(plan: Plan, mixed: str | None) -> list[str]:
    trainer, said = plan["trainer"], []
    if trainer.get("torch_compile") or plan["accelerator"].get("dynamo_plugin"):
        said.append("torch.compile's memory is not modelled: it is that without it, which is usually more.")
    if plan["model"].get("quantization_config") and plan.engine != "NO":
        said.append(
            "4-bit weights under DeepSpeed or FSDP are counted whole: so they load, and ZeRO-3 alone shards them later."
        )
    if plan["collator"].get("padding_free"):
        said.append("Packed rows are full, and each is one document; torch's attention holds a mask that parts them.")
    if mixed == "fp8":
        said.append("fp8 is not modelled: the figures are those of bf16 autocast.")
    if trainer.get("neftune_noise_alpha"):
        said.append("The noise of NEFTune is not modelled: it is as large as the embeddings of the batch.")
    if plan["model"].get("attn_implementation") == "flex_attention":
        said.append("flex_attention is taken for a kernel that keeps what FlashAttention keeps.")
    if trainer.get("bf16_full_eval") or trainer.get("fp16_full_eval"):
        said.append("Evaluation in 16-bit weights is not modelled: it is estimated with the weights as they train.")
    if trainer.get("label_smoothing_factor"):
        said.append("Smoothing of labels is not modelled: Trainer computes its loss from log-probabilities of its own.")
    if {"rope", "rms_norm", "layer_norm", "swiglu", "geglu"} & set(_liger(trainer)):
        said.append(
            "Of Liger's kernels only the loss is modelled: those for norms, rotary embedding and MLP save more."
        )
    return said
