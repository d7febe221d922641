"""What mends a finding in a file of keys and values: one small function for each code of a check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from hf_efficient.checks.deepspeed_keys import (
    AUTO_TRAINER,
    BLOCKS,
    FP16_NUMBERS,
    REMOVED,
    TOP,
    TOP_NUMBERS,
    YAML_READ,
    ZERO_NUMBERS,
)
from hf_efficient.checks.doors import door
from hf_efficient.doctor.fix.mapping import Change
from hf_efficient.finding import Finding
from hf_efficient.reading.setup import Setup

Path = tuple[str, ...]
ALIKE, APART = 0.88, 0.04
"""From there on a name is surely a misspelling of another one: so like it, and so much more than of the next."""
STEPS, CLIPPING = "gradient_accumulation_steps", "gradient_clipping"
GATHER = ("stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save")
SAYS: Mapping[str, tuple[str, ...]] = {
    "train_micro_batch_size_per_gpu": ("per_device_train_batch_size",),
    "train_batch_size": ("per_device_train_batch_size", STEPS),
    STEPS: (STEPS,),
    CLIPPING: ("max_grad_norm",),
    "optimizer.params.lr": ("learning_rate",),
    "optimizer.params.betas": ("adam_beta1", "adam_beta2"),
    "optimizer.params.eps": ("adam_epsilon",),
    "optimizer.params.weight_decay": ("weight_decay",),
    "scheduler.params.warmup_max_lr": ("learning_rate",),
    "scheduler.params.warmup_num_steps": ("warmup_steps",),
    "scheduler.params.total_num_steps": ("max_steps",),
    "fp16.enabled": ("fp16", "bf16"),
    "bf16.enabled": ("fp16", "bf16"),
}
"""The arguments that "auto" at a path takes its value from; one of them must be said, or "auto" means a default."""


@dataclass(frozen=True)
class Case:
    """A finding in a file, with what its cure may ask."""

    finding: Finding
    data: Mapping[str, Any]
    runs: Sequence[Setup]
    """Every run that the file is part of."""
    line: Callable[[Path], int]

    def named(self) -> Iterator[tuple[Path, Any]]:
        """Yield the keys that the finding names by their paths, on its line if it has one."""
        for path, value in _walk(self.data):
            here = self.finding.where.line in (0, self.line(path))
            if here and _names(self.finding.what, ".".join(path)):
                yield path, value

    def trained(self, *fields: str) -> bool:
        """Does a Trainer use the file in every run, and its arguments say one of the fields?"""
        settings = [run.trainer for run in self.runs]
        return bool(settings) and all(one is not None and any(one.said(name) for name in fields) for one in settings)

    def on(self, *fields: str) -> bool:
        """Do the arguments turn one of the fields on, in every run?"""
        return all(run.trainer is not None and any(map(run.trainer.on, fields)) for run in self.runs)


Cure = Callable[[Case], Iterator[Change]]


def mismatch(case: Case) -> Iterator[Change]:
    """Yield "auto" for a value that the arguments contradict; what only a default contradicts stays."""
    for path, value in case.named():
        dotted = ".".join(path)
        sure = case.trained(*SAYS.get(dotted, ())) and (path[-1] != "enabled" or case.on("fp16", "bf16"))
        if dotted in AUTO_TRAINER and value != "auto" and sure:
            yield Change("set", path, "auto")


def add_clipping(case: Case) -> Iterator[Change]:
    """Yield gradient_clipping as "auto", where the arguments say max_grad_norm."""
    if CLIPPING not in case.data and case.trained("max_grad_norm"):
        yield Change("add", (CLIPPING,), "auto")


def add_accumulation(case: Case) -> Iterator[Change]:
    """Yield gradient_accumulation_steps as "auto", where the Trainer or Accelerator says it and will fill it."""
    loops = [run.accelerator for run in case.runs if door(run) == "accelerate"]
    looped = len(loops) == len(case.runs) and all(one is not None and one.said(STEPS) for one in loops)
    if STEPS not in case.data and (looped or case.trained(STEPS)):
        yield Change("add", (STEPS,), "auto")


def number(case: Case) -> Iterator[Change]:
    """Yield the number that a string spells."""
    for path, value in case.named():
        whole = path[-1] in (*ZERO_NUMBERS, *FP16_NUMBERS, *TOP_NUMBERS)
        entries = value if isinstance(value, list) else [value]
        made = [_number(one, whole) if isinstance(one, str) else one for one in entries]
        if any(isinstance(one, str) for one in entries) and None not in made:
            yield Change("set", path, made if isinstance(value, list) else made[0])


def flag(case: Case) -> Iterator[Change]:
    """Yield the truth value that a string spells."""
    for path, value in case.named():
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            yield Change("set", path, value.strip().lower() == "true")


def misspelled(case: Case) -> Iterator[Change]:
    """Yield the name that a key surely means, where the block does not have it already."""
    for path, _ in case.named():
        known = TOP if len(path) == 1 else BLOCKS.get(".".join(path[:-1]), frozenset())
        if path[0] == "deepspeed_config":
            known = YAML_READ
        right = _meant(path[-1], known)
        block = case.data if len(path) == 1 else _at(case.data, path[:-1])
        if right and right not in block and path[-1] not in known:
            yield Change("rename", path, right)


def old_gathering(case: Case) -> Iterator[Change]:
    """Yield the new name of the key that gathers weights for saving."""
    block = case.data.get("zero_optimization")
    if isinstance(block, Mapping) and GATHER[0] in block and GATHER[0] in case.finding.what:
        path = ("zero_optimization", GATHER[0])
        if GATHER[1] not in block:
            yield Change("rename", path, GATHER[1])
        elif block[GATHER[0]] == block[GATHER[1]]:
            yield Change("remove", path)


def switched_off(case: Case) -> Iterator[Change]:
    """Yield the removal of a block that DeepSpeed has dropped and that was off anyway."""
    for path, value in case.named():
        off = value is False or (isinstance(value, Mapping) and value.get("enabled") is False)
        if off and len(path) == 1 and path[0] in REMOVED:
            yield Change("remove", path)


def offload_block(case: Case) -> Iterator[Change]:
    """Yield the block that an offload to the CPU needs, for a word or a flag in its place."""
    for path, value in case.named():
        if path[-1] in ("offload_optimizer", "offload_param") and (value is True or value == "cpu"):
            yield Change("set", path, {"device": "cpu"})


def drop_auto_steps(case: Case) -> Iterator[Change]:
    """Yield the removal of an "auto" that only a DeepSpeed JSON may hold."""
    path = ("deepspeed_config", STEPS)
    if _at(case.data, path[:-1]).get(STEPS) == "auto":
        yield Change("remove", path)


def drop_contradicted(case: Case) -> Iterator[Change]:
    """Yield the removal of a value of the launch file that the arguments contradict, where they say theirs."""
    for key, field in ((STEPS, STEPS), (CLIPPING, "max_grad_norm")):
        path = ("deepspeed_config", key)
        if _names(case.finding.what, ".".join(path)) and key in _at(case.data, path[:-1]) and case.trained(field):
            yield Change("remove", path)


DEEPSPEED: Mapping[str, Cure] = {
    "deepspeed-mismatch": mismatch,
    "deepspeed-precision-mismatch": mismatch,
    "deepspeed-max-grad-norm-ignored": add_clipping,
    "deepspeed-clipping-left-to-default": add_clipping,
    "deepspeed-accumulation-missing": add_accumulation,
    "deepspeed-accumulation-beats-code": add_accumulation,
    "deepspeed-number-as-string": number,
    "deepspeed-flag-as-string": flag,
    "deepspeed-unknown-top-level-key": misspelled,
    "deepspeed-unknown-block-key": misspelled,
    "deepspeed-deprecated-key": old_gathering,
    "deepspeed-removed-block": switched_off,
    "deepspeed-offload-without-block": offload_block,
}
LAUNCH: Mapping[str, Cure] = {
    "launcher-accumulation-auto": drop_auto_steps,
    "launcher-deepspeed-against-arguments": drop_contradicted,
    "launch-deepspeed-unknown-key": misspelled,
}
ARGUMENTS: Mapping[str, Cure] = {
    "text-where-a-number-belongs": lambda case: (one for each in (number, flag) for one in each(case))
}
CURES: Mapping[str, Mapping[str, Cure]] = {"deepspeed": DEEPSPEED, "launch": LAUNCH, "arguments": ARGUMENTS}
"""Kind of file, then code of a check."""


def cured(kind: str, cases: Sequence[Case]) -> list[Change]:
    """Return what mends the findings in a file, each change once.

    A key is added only when no name is mended in the same round: the missing key may be the misspelled one.
    """
    table = CURES.get(kind, {})
    every = [change for case in cases if case.finding.code in table for change in table[case.finding.code](case)]
    once = {(change.do, change.path): change for change in every}
    renamed = any(change.do == "rename" for change in every)
    return [change for change in once.values() if not (renamed and change.do == "add")]


def _walk(data: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    for key, value in data.items():
        if isinstance(key, str):
            yield (*above, key), value
            if isinstance(value, Mapping):
                yield from _walk(value, (*above, key))


def _names(text: str, path: str) -> bool:
    """Does a text name a path, and not a longer one that holds it?"""
    at = text.find(path)
    end = at + len(path)
    before, after = text[at - 1 : at], text[end : end + 1]
    return at >= 0 and not (before.isalnum() or before in tuple("_.")) and not (after.isalnum() or after == "_")


def _at(data: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    found: Any = data
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _meant(name: str, known: frozenset[str]) -> str:
    """Return the one known name that a name surely means, or an empty string."""
    ranked = sorted(((SequenceMatcher(None, name.lower(), one).ratio(), one) for one in known), reverse=True)[:2]
    clear = len(ranked) == 2 and ranked[0][0] >= ALIKE and ranked[0][0] - ranked[1][0] >= APART
    return ranked[0][1] if clear else ""


def _number(text: str, whole: bool) -> Any:
    for read in (int, float):
        try:
            value = read(text.strip())
        except ValueError:
            continue
        return int(value) if whole and isinstance(value, float) and value.is_integer() else value
    return None
