"""Optimizer and scheduler blocks of a DeepSpeed JSON beside those of the script, and offload."""

from __future__ import annotations

from collections.abc import Iterator

from hf_efficient.checks.check import check
from hf_efficient.checks.doors import door
from hf_efficient.finding import Finding, error, info, warning
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

PLAIN_ADAMW = (
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_apex_fused",
    "adamw_hf",
    "adamw_torch_xla",
    "adamw_torch_npu_fused",
)
SAME = {"adamw": PLAIN_ADAMW, "adam": PLAIN_ADAMW, "adagrad": ("adagrad",), "lion": ("lion_32bit",)}
"""What a block's type is among the values of `optim`."""
SCHEDULES = {
    "WarmupLR": ("constant_with_warmup",),
    "WarmupDecayLR": ("linear",),
    "WarmupCosineLR": ("cosine", "cosine_with_min_lr"),
}
KNOWN_SCHEDULES = ("LRRangeTest", "OneCycle", *SCHEDULES)
TORCH_OPTIMIZERS = (
    "AdamW", "Adam", "SGD", "Adafactor", "AdamW8bit", "Adam8bit", "PagedAdamW8bit", "Lion", "Adagrad", "RMSprop",
)  # fmt: skip


@check({"transformers": ">=4.46"}, seen="ran on CPU")
def deepspeed_optimizer_beside_optim(trainer: Settings, deepspeed: Settings) -> Iterator[Finding]:
    """Find an optimizer block in the DeepSpeed JSON beside another `optim` in the arguments.

    With the block transformers makes no optimizer of its own (deepspeed_optim_sched gives a DummyOptim), so `optim` and
    `optim_args` are ignored without a word: with optim="adafactor" the losses are AdamW's to the last digit.
    """
    kind, optim = deepspeed.text("optimizer.type"), trainer.text("optim")
    if not kind or not optim or not trainer.said("optim") or optim in SAME.get(kind.lower(), (kind.lower(),)):
        return
    yield error(
        f"optimizer.type is {kind} in the DeepSpeed JSON and optim={optim!r} in the arguments",
        why=f"The optimizer block wins in silence: training uses {kind}, and {optim} is never made.",
        fix=f"Remove the optimizer block from the JSON to train with {optim}, or leave optim out and keep the block.",
        at=deepspeed.where("optimizer"),
    )


@check({"accelerate": ">=1.0"}, seen="ran on CPU")
def deepspeed_optimizer_in_code_too(
    setup: Setup, deepspeed: Settings, optimizer: Settings = NOTHING
) -> Iterator[Finding]:
    """Find an optimizer or scheduler block in the DeepSpeed JSON of a hand-written loop that makes its own.

    Accelerator.prepare raises ValueError ("You cannot specify an optimizer in the config file and in the code"). With
    the block the loop passes `accelerate.utils.DummyOptim` and `DummyScheduler` instead.
    """
    script = setup.script
    if door(setup) != "accelerate":
        return
    dummies = {name: script is not None and bool(script.named(name)) for name in ("DummyOptim", "DummyScheduler")}
    own = bool(optimizer.text("class")) or (script is not None and bool(script.named(*TORCH_OPTIMIZERS)))
    made = script is not None and any(
        call.method.startswith("get_") and "schedule" in call.method for call in script.calls
    )
    for block, has, dummy in (("optimizer", own, "DummyOptim"), ("scheduler", made, "DummyScheduler")):
        if deepspeed.said(f"{block}.type") and has and not dummies[dummy]:
            yield error(
                f"the DeepSpeed JSON has a block {block} ({deepspeed.get(f'{block}.type')}), the script makes its own",
                why=f"Accelerator.prepare raises ValueError: the {block} stands in the config file and in the code.",
                fix=f"Remove the {block} block from the JSON, or pass accelerate.utils.{dummy} instead of yours.",
                at=deepspeed.where(block),
            )


@check({"accelerate": ">=1.0"})
def deepspeed_dummy_without_block(setup: Setup, deepspeed: Settings) -> Iterator[Finding]:
    """Find DummyOptim in a script whose DeepSpeed JSON has no optimizer block.

    DummyOptim stands for what the JSON describes; Accelerator.prepare raises ValueError where it describes nothing.
    """
    made = setup.script.named("DummyOptim") if setup.script is not None else []
    guarded = any("optimizer" in guard for call in made for guard in call.guards)
    if made and not guarded and not deepspeed.said("optimizer") and not deepspeed.open:
        yield error(
            "DummyOptim, and no optimizer block in the DeepSpeed JSON",
            why="Accelerator.prepare raises ValueError: a DummyOptim needs an optimizer in the config file.",
            fix="Make a torch optimizer in the script, or add an optimizer block to the JSON.",
            at=made[0].place,
        )


@check({"transformers": ">=4.46"})
def deepspeed_scheduler_beside_type(trainer: Settings, deepspeed: Settings) -> Iterator[Finding]:
    """Find a scheduler block in the DeepSpeed JSON beside another `lr_scheduler_type`.

    With the block transformers makes no scheduler (DummyScheduler), so lr_scheduler_type and its keywords are ignored:
    WarmupLR stays at the peak rate after the warmup, WarmupDecayLR falls linearly, WarmupCosineLR as a cosine.
    """
    kind, asked = deepspeed.text("scheduler.type"), trainer.text("lr_scheduler_type")
    if not kind or not asked or not trainer.said("lr_scheduler_type") or asked in SCHEDULES.get(kind, ()):
        return
    yield error(
        f"scheduler.type is {kind} in the DeepSpeed JSON and lr_scheduler_type={asked!r} in the arguments",
        why=f"The scheduler block wins in silence: the rate follows {kind}, not {asked}.",
        fix="Remove the scheduler block from the JSON and let lr_scheduler_type act, or make both say the same.",
        at=deepspeed.where("scheduler"),
    )


@check({"deepspeed": ">=0.19.6"})
def deepspeed_scheduler_unusable(deepspeed: Settings) -> Iterator[Finding]:
    """Find a scheduler block that DeepSpeed cannot build: an unknown type, or no warmup steps.

    DeepSpeed knows LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR and WarmupCosineLR, else a class of torch; since
    0.19.6 the warmup schedules refuse warmup_num_steps that is no positive integer.
    """
    kind = deepspeed.text("scheduler.type")
    steps = deepspeed.number("scheduler.params.warmup_num_steps")
    if steps is not UNKNOWN and (steps < 1 or not (isinstance(steps, int) or steps.is_integer())):
        yield error(
            f"scheduler.params.warmup_num_steps is {steps}",
            why="DeepSpeed refuses warmup steps that are no positive integer, where older releases took 2 in silence.",
            fix='Write "auto" (the Trainer fills at least 1) or an integer of at least 1.',
            at=deepspeed.where("scheduler.params.warmup_num_steps"),
        )
    wrong = {name.lower(): name for name in KNOWN_SCHEDULES}.get(kind.lower(), "")
    if kind and wrong and wrong != kind:
        yield error(
            f"scheduler.type is {kind}",
            why="DeepSpeed compares the name letter by letter and does not find that scheduler.",
            fix=f'Write "type": "{wrong}".',
            at=deepspeed.where("scheduler.type"),
        )


@check({"transformers": ">=5.0"})
def trainer_optimizers_dropped_by_deepspeed(setup: Setup, trainer: Settings, zero: Settings) -> Iterator[Finding]:
    """Find an optimizer handed to a Trainer that trains under DeepSpeed.

    deepspeed_init (transformers/integrations/deepspeed.py) sets trainer.optimizer to None and makes a new one from the
    arguments, so the optimizer given as `optimizers=(optimizer, ...)` is dropped without a word.
    """
    for call in setup.script.calls if setup.script is not None else []:
        given = call.keywords.get("optimizers") if call.method.endswith("Trainer") else None
        nodes = [key.value for key in call.node.keywords if key.arg == "optimizers"] if given is not None else []
        first = getattr(nodes[0], "elts", [None])[0] if nodes else None
        if first is not None and getattr(first, "value", "") is not None:
            yield error(
                f"{call.method}(optimizers=...) under DeepSpeed",
                why="deepspeed_init sets the Trainer's optimizer to None and makes the one that optim names instead.",
                fix="Say it by optim and optim_args, pass optimizer_cls_and_kwargs, or override create_optimizer.",
                at=call.place,
            )


@check({"deepspeed": ">=0.10"})
def zero_offload_param_below_stage_3(zero: Settings) -> Iterator[Finding]:
    """Find parameter offload at a ZeRO stage below 3.

    Only stage 3 partitions parameters; at stage 1 and 2 DeepSpeed reads offload_param and does nothing with it, so that
    the weights stay on the card.
    """
    stage, device = zero.number("stage"), zero.get("offload_param")
    if stage is not UNKNOWN and stage < 3 and device in ("cpu", "nvme"):
        yield warning(
            f"offload_param goes to {device} at ZeRO stage {stage}",
            why=f"Parameters are offloaded at stage 3 only: at stage {stage} the key is ignored in silence.",
            fix=f"Set stage to 3 (zero_stage: 3 in the YAML), or remove offload_param{_optimizer_too(zero)}.",
            at=zero.where("offload_param"),
        )


def _optimizer_too(zero: Settings) -> str:
    return "" if zero.get("offload_optimizer") in ("cpu", "nvme") else "; offload_optimizer works at stages 1, 2 and 3"


@check({"deepspeed": ">=0.10"})
def zero_optimizer_offload_without_zero(zero: Settings) -> Iterator[Finding]:
    """Find optimizer offload at ZeRO stage 0.

    Stage 0 turns ZeRO off, and offload with it.
    """
    stage, device = zero.number("stage"), zero.get("offload_optimizer")
    if stage == 0 and device in ("cpu", "nvme"):
        yield warning(
            f"offload_optimizer goes to {device} at ZeRO stage 0",
            why="Stage 0 turns ZeRO off: the optimizer stays on the card.",
            fix="Set the stage to 1, 2 or 3.",
            at=zero.where("offload_optimizer"),
        )


@check({"accelerate": ">=1.0", "deepspeed": ">=0.10"})
def zero_offload_maps_adam(setup: Setup, zero: Settings, optimizer: Settings) -> Iterator[Finding]:
    """Tell that optimizer offload exchanges torch's Adam for DeepSpeedCPUAdam.

    accelerate's prepare() maps torch.optim.Adam and AdamW to DeepSpeedCPUAdam (map_pytorch_optim_to_deepspeed), with
    the same mathematics; its first use compiles an operator, which takes minutes. In a DeepSpeed JSON,
    `"zero_force_ds_cpu_optimizer": false` keeps torch's.
    """
    kind = optimizer.text("class").rpartition(".")[2]
    kept = setup.deepspeed is not None and setup.deepspeed.get("zero_force_ds_cpu_optimizer") is False
    offloaded = zero.get("offload_optimizer") in ("cpu", "nvme")
    if offloaded and kind in ("Adam", "AdamW") and not kept and door(setup) == "accelerate":
        yield info(
            f"{kind} with the optimizer offloaded to {zero.get('offload_optimizer')}",
            why="accelerate exchanges it for DeepSpeedCPUAdam; its first use compiles an operator and takes minutes.",
            fix='Nothing to do; "zero_force_ds_cpu_optimizer": false in a DeepSpeed JSON keeps torch\'s optimizer.',
            at=optimizer.place,
        )
