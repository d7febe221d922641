"""Mistakes of packing: documents that see each other, lengths that are missing, options that exclude it."""

from __future__ import annotations

from collections.abc import Iterator

from hf_efficient.checks.check import check, version
from hf_efficient.finding import Finding, error, info, warning
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings

STRATEGIES = ("bfd", "bfd_split", "bfd-requeue", "wrapped")
SEES_PLAIN = ("sdpa", "eager")


@check({"transformers": ">=4.44"}, seen="ran on CPU")
def packed_documents_see_each_other(
    data: Settings,
    model: Settings = NOTHING,
    trainer: Settings = NOTHING,
    script: Script | None = None,
    machine: Settings = NOTHING,
) -> Iterator[Finding]:
    """Find rows packed from several documents whose attention crosses from one document into the next.

    DataCollatorWithFlattening and other packers restart position_ids at each document and give no attention_mask.
    Flash attention reads the borders from them. Under sdpa and eager the mask is built from position_ids only in
    releases that look for packed rows (masking_utils.py, find_packed_sequence_indices), only without an attention_mask
    and only with use_cache=False; an all-ones mask or a cache lets the documents see each other in silence (0.07 to
    0.25 on the logits, measured). Trainer sets use_cache=False; a hand-written loop must.
    """
    attention = model.text("attn_implementation")
    plain = attention in SEES_PLAIN or (not attention and model.knows("attn_implementation") and not model.open)
    if not plain or not (data.on("flattening") or data.on("packing")):
        return
    used = version("transformers", machine)
    cache = trainer.on("use_cache") if trainer else model.on("use_cache") or _caching(script)
    masked = data.on("attention_mask") or "attention_mask" in _keys(data)
    if cache or masked or (used is not None and used.release < (4, 53)):
        cause = "an attention_mask" if masked else "use_cache=True" if cache else f"transformers {used}"
        yield error(
            f"Packed rows under attn_implementation={attention or 'sdpa'!r} with {cause}",
            why="Documents in one row attend to each other: the borders in position_ids count only without "
            "attention_mask and with use_cache=False.",
            fix="Leave attention_mask out of the batch and call the model with use_cache=False, or load with "
            'attn_implementation="flash_attention_2".',
            at=model.where("attn_implementation") if attention else data.place,
        )
    else:
        yield info(
            f"Packed rows under attn_implementation={attention or 'sdpa'!r}",
            why="The documents stay apart only as long as the batch has restarted position_ids, no attention_mask, and "
            "use_cache is False; attention then costs the square of the packed length.",
            fix='attn_implementation="flash_attention_2" keeps them apart by itself and costs less.',
            at=model.where("attn_implementation") if attention else data.place,
        )


@check({"trl": ">=0.20"}, seen="read source")
def packing_across_documents(sft: Settings) -> Iterator[Finding]:
    """Find packing_strategy="wrapped": rows are cut from one long text, and nothing marks where documents end.

    "bfd" and "bfd_split" keep documents whole and turn padding_free on, so that position_ids restart at each document;
    "wrapped" (trl data_utils.py, _pack_wrapped) ignores the borders: tokens attend to the document before, as in
    pretraining. For short chats that trains on foreign contexts.
    """
    if sft.on("packing") and sft.text("packing_strategy") == "wrapped":
        yield info(
            'packing=True with packing_strategy="wrapped"',
            why="Documents are cut and joined without a border: each attends to those before it.",
            fix='Use packing_strategy="bfd", which keeps documents whole and apart, unless this is meant.',
            at=sft.where("packing_strategy"),
        )
    strategy = sft.text("packing_strategy")
    if sft.on("packing") and strategy and strategy not in STRATEGIES and sft.said("packing_strategy"):
        yield error(
            f"packing_strategy={strategy!r} is none",
            why="pack_dataset raises ValueError when the dataset is prepared.",
            fix='Write "bfd", "bfd_split" or "wrapped".',
            at=sft.where("packing_strategy"),
        )


@check({"trl": ">=0.20"}, seen="read source")
def packing_without_length(sft: Settings) -> Iterator[Finding]:
    """Find packing without max_length, and padding_free with a max_length that nothing enforces.

    SFTTrainer raises ValueError for packing=True with max_length=None: a packed row needs a length. padding_free
    without packing cuts no rows at max_length (1024 by default): SFTTrainer raises ValueError until it is None.
    """
    length = sft.get("max_length")
    if sft.on("packing") and sft.said("max_length") and length is None:
        yield error(
            "packing=True with max_length=None",
            why="A packed row needs a length: SFTTrainer raises ValueError.",
            fix="Set max_length to the length of a packed row, such as max_length=2048.",
            at=sft.where("max_length"),
        )
    free = sft.get("padding_free") is True and sft.off("packing")
    if free and length is not None and length is not UNKNOWN:
        yield error(
            f"padding_free=True without packing, and max_length={length}",
            why="Rows would not be cut at max_length: SFTTrainer raises ValueError.",
            fix="Set packing=True, or truncate the rows yourself and set max_length=None.",
            at=sft.where("padding_free"),
        )


@check({"trl": ">=0.20"}, seen="read source")
def collator_beside_padding_free(sft: Settings, script: Script) -> Iterator[Finding]:
    """Find a data collator of the script's own where SFTTrainer flattens the batches itself.

    packing with a "bfd" strategy and padding_free=True need TRL's own collator: ValueError for another one.
    """
    free = sft.get("padding_free") is True or (sft.on("packing") and sft.text("packing_strategy").startswith("bfd"))
    for call in script.named("trl.SFTTrainer") if free else ():
        node = next((k.value for k in call.node.keywords if k.arg == "data_collator"), None)
        if node is not None and call.keywords.get("data_collator", UNKNOWN) is not None:
            yield error(
                "SFTTrainer gets a data_collator together with packing or padding_free",
                why="Rows are flattened by TRL's own collator: SFTTrainer raises ValueError for another one.",
                fix='Leave data_collator out, or set packing=False (or packing_strategy="wrapped") and '
                "padding_free=False.",
                at=call.place,
            )


@check({"trl": ">=0.20"}, seen="read source")
def padding_free_of_single_rows(sft: Settings) -> Iterator[Finding]:
    """Find padding_free with one row per batch: there is nothing to save.

    A batch of one row has no padding; flattening pays from two rows on (SFTTrainer logs a warning).
    """
    one = sft.number("per_device_train_batch_size") == 1
    if sft.get("padding_free") is True and sft.off("packing") and one:
        yield warning(
            "padding_free=True with per_device_train_batch_size=1",
            why="One row is never padded, so nothing is saved.",
            fix="Raise per_device_train_batch_size to 2 or more, or leave padding_free out.",
            at=sft.where("padding_free"),
        )


@check({"trl": ">=0.20"}, seen="read source")
def packed_evaluation(sft: Settings) -> Iterator[Finding]:
    """Find packing without a word about eval_packing where evaluation is on.

    eval_packing=None means the same as packing, so the evaluation rows are packed too, and the losses are means over
    other rows than without packing.
    """
    strategy = sft.text("eval_strategy")
    if sft.on("packing") and strategy in ("steps", "epoch") and not sft.said("eval_packing"):
        yield info(
            "packing=True packs the evaluation rows too",
            why="eval_packing follows packing where it is not set: evaluation losses are not those of single rows.",
            fix="Write eval_packing=False to evaluate row by row, or eval_packing=True to say that it is meant.",
            at=sft.where("packing"),
        )


@check({"trl": ">=1.0"}, seen="read source")
def unknown_sft_loss(sft: Settings) -> Iterator[Finding]:
    """Find a loss_type that SFTTrainer does not have.

    SFTTrainer knows "nll" (the default, computed in chunks) and "dft" and raises ValueError for another name;
    "chunked_nll" is an old name of "nll".
    """
    name = sft.text("loss_type")
    if name and sft.said("loss_type") and name not in ("nll", "dft", "chunked_nll"):
        yield error(
            f"loss_type={name!r} is none of SFTTrainer's",
            why="SFTTrainer raises ValueError.",
            fix='Write loss_type="nll" or loss_type="dft".',
            at=sft.where("loss_type"),
        )


@check({"trl": ">=1.0"}, seen="read source")
def formatting_beside_completion_loss(sft: Settings, script: Script) -> Iterator[Finding]:
    """Find a formatting_func together with completion_only_loss=True.

    The function makes one text of prompt and completion, so there is no completion left to count: SFTTrainer raises
    ValueError.
    """
    for call in script.named("trl.SFTTrainer") if sft.get("completion_only_loss") is True else ():
        if "formatting_func" in call.keywords and call.keywords["formatting_func"] is not None:
            yield error(
                "SFTTrainer gets formatting_func with completion_only_loss=True",
                why="The formatted text no longer shows where the completion begins: SFTTrainer raises ValueError.",
                fix="Return prompt and completion columns instead of formatting, or set completion_only_loss=False.",
                at=call.place,
            )


def _keys(data: Settings) -> list[str]:
    keys = data.get("keys")
    return [str(key) for key in keys] if isinstance(keys, list | tuple) else []


def _caching(script: Script | None) -> bool:
    """Does a training loop of the script call the model with a cache?"""
    loops = script.training_loops if script is not None else []
    inside = [call for loop in loops for call in script.inside(loop)] if script is not None else []
    return any(call.keywords.get("use_cache") is True for call in inside)
