"""Adapters: what stays frozen that should train, and options of LoraConfig that are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hf_efficient.checks.check import check
from hf_efficient.finding import Finding, error, warning
from hf_efficient.reading.settings import Settings
from hf_efficient.reading.setup import Setup

HEADED = re.compile(
    r"For(Sequence|Token|Image|Audio|Video|AudioFrame)Classification$|ForQuestionAnswering$|ForMultipleChoice$"
)
TASKS = {"SequenceClassification": "SEQ_CLS", "TokenClassification": "TOKEN_CLS", "QuestionAnswering": "QUESTION_ANS"}
HEADS = ("classifier", "score", "qa_outputs", "head", "logits_proj", "projector")


@check({"peft": ">=0.5"}, seen="ran on CPU")
def adapters_leave_new_head_frozen(model: Settings, peft: Settings) -> Iterator[Finding]:
    """Find adapters on a classifier whose new head is not trained.

    A model for classification or question answering that is made from a pretrained base gets a head of random weights.
    get_peft_model freezes everything but the adapters; only for task_type SEQ_CLS, TOKEN_CLS and QUESTION_ANS does PEFT
    add the head to modules_to_save by itself (peft_model.py). Without one of those (with none, or FEATURE_EXTRACTION)
    and without modules_to_save the adapters learn to serve a random projection. Not meant: a checkpoint whose head is
    trained already, and targets that name the head, "all-linear" among them.
    """
    made, targets = model.text("class") or model.text("architecture"), peft.get("target_modules")
    if not HEADED.search(made) or peft.open or peft.text("class") not in ("", "LoraConfig") or not peft:
        return
    named = targets if isinstance(targets, list) else []
    covered = isinstance(targets, str) or any(not isinstance(one, str) or one.endswith(HEADS) for one in named)
    features = peft.text("task_type").rpartition(".")[2].upper() == "FEATURE_EXTRACTION"
    free = (features or peft.off("task_type")) and peft.off("modules_to_save")
    if not free or covered or "target_modules" not in peft:
        return
    task = next((value for key, value in TASKS.items() if key in made), None)
    cure = f'task_type="{task}" or ' if task else ""
    yield warning(
        f"Adapters on {made} without {'task_type and ' if task else ''}modules_to_save",
        why="get_peft_model freezes the head, and the head of a model made from a pretrained base is random: it"
        " stays so.",
        fix=f'Write {cure}modules_to_save=["classifier"] (the name of the head in this model) in the configuration.',
        at=peft.place,
    )


@check({"peft": ">=0.5", "transformers": ">=5.0"}, seen="ran on CPU")
def adapters_for_generation_on_another_head(model: Settings, peft: Settings) -> Iterator[Finding]:
    """Find task_type CAUSAL_LM or SEQ_2_SEQ_LM for a model that cannot generate.

    PEFT wraps the model's prepare_inputs_for_generation for these tasks (peft_model.py); classifiers, question
    answering and masked language models have none, and get_peft_model raises AttributeError. Not meant: a generating
    model under SEQ_CLS, which trains all the same.
    """
    made, task = model.text("class") or model.text("architecture"), peft.text("task_type").rpartition(".")[2].upper()
    if task not in ("CAUSAL_LM", "SEQ_2_SEQ_LM") or not (HEADED.search(made) or made.endswith("ForMaskedLM")):
        return
    right = next((value for key, value in TASKS.items() if key in made), "")
    yield error(
        f'task_type="{task}" for {made}',
        why="get_peft_model raises AttributeError: the model has no prepare_inputs_for_generation.",
        fix=f'Write task_type="{right}".'
        if right
        else 'Leave task_type out (name a head of random weights in modules_to_save, such as ["classifier"]).',
        at=peft.where("task_type"),
    )


@check({"peft": ">=0.5"}, seen="read source")
def adapters_loaded_frozen(peft: Settings, trainer: Settings) -> Iterator[Finding]:
    """Find adapters that are loaded for inference and then trained.

    PeftModel.from_pretrained freezes what it loads unless is_trainable=True, so no parameter is left to train: the
    optimizer gets none, or the first backward pass raises ("element 0 of tensors does not require grad").
    """
    if peft.said("is_trainable") and peft.get("is_trainable") is False:
        yield error(
            "PeftModel.from_pretrained without is_trainable=True, and training",
            why="Adapters are loaded frozen by default, so nothing can be trained.",
            fix="Pass is_trainable=True to PeftModel.from_pretrained.",
            at=peft.place,
        )


@check({"peft": ">=0.8"}, seen="read source")
def lora_options_refused(peft: Settings) -> Iterator[Finding]:
    """Find options of LoraConfig that PEFT refuses.

    r must be positive (ValueError when the adapter is made); layers_to_transform and layers_pattern do not go with
    target_modules as one string, and layers_pattern needs layers_to_transform; lora_bias goes neither with use_dora nor
    with a named init_lora_weights (peft/tuners/lora/config.py, __post_init__).
    """
    if peft.text("class") not in ("", "LoraConfig"):
        return
    for wrong, why, fix, key in _refused(peft):
        yield error(wrong, why=f"PEFT raises ValueError: {why}", fix=fix, at=peft.where(key))


def _refused(peft: Settings) -> Iterator[tuple[str, str, str, str]]:
    rank, targets = peft.number("r"), peft.get("target_modules")
    if rank <= 0:
        yield f"r={rank}", "r is the rank and must be a positive integer.", "Write r=8 or r=16.", "r"
    for key in ("layers_to_transform", "layers_pattern"):
        if peft.on(key) and isinstance(targets, str):
            fix = 'Write target_modules as a list, such as ["q_proj", "v_proj"], or leave ' + key + " out."
            yield f'{key} with target_modules="{targets}"', "it needs target_modules as a list.", fix, key
    if peft.on("layers_pattern") and peft.off("layers_to_transform") and not isinstance(targets, str):
        fix = "Add layers_to_transform with the layers' numbers, or leave layers_pattern out."
        said = "layers_pattern without layers_to_transform"
        yield said, "the pattern says where their numbers stand.", fix, "layers_pattern"
    if peft.on("lora_bias") and peft.on("use_dora"):
        yield "lora_bias=True with use_dora=True", "DoRA has no bias.", "Leave one of them out.", "lora_bias"
    if peft.on("lora_bias") and peft.text("init_lora_weights"):
        said = f"lora_bias=True with init_lora_weights={peft.text('init_lora_weights')!r}"
        yield said, "it needs init_lora_weights=True or False.", "Leave lora_bias out.", "lora_bias"


@check({"peft": ">=0.8"}, seen="read source")
def pissa_of_quantized_weights(peft: Settings, model: Settings) -> Iterator[Finding]:
    """Find PiSSA initialisation on a quantized model.

    PiSSA takes the singular vectors of the weights and subtracts them, for which these must be float32, float16 or
    bfloat16: on quantized ones PEFT raises TypeError (peft/tuners/lora/layer.py, pissa_init).
    """
    flag = next((key for key in ("load_in_4bit", "load_in_8bit") if model.on(key)), "")
    if flag and peft.text("init_lora_weights").startswith("pissa"):
        yield error(
            f"init_lora_weights={peft.text('init_lora_weights')!r} with {flag}=True",
            why="PEFT raises TypeError: the weights must be float32, float16 or bfloat16 when PiSSA is made.",
            fix="Make and save the PiSSA adapter on the unquantized model first and quantize the residual, or use"
            ' init_lora_weights=True or "olora".',
            at=peft.where("init_lora_weights"),
        )


@check({"transformers": ">=5.24", "peft": "<0.22"}, seen="ran on CPU")
def add_adapter_needs_newer_peft(setup: Setup) -> Iterator[Finding]:
    """Find model.add_adapter of transformers with a PEFT that is too old for it.

    transformers 5.24 asks for peft 0.22 in add_adapter, set_adapter and the like of its own models and raises
    ValueError for older ones (integrations/peft.py, MIN_PEFT_VERSION). get_peft_model has no such condition.
    """
    script = setup.script
    for call in script.named("add_adapter") if script is not None else []:
        made = script.made(call.receiver) if script is not None else None
        if made is not None and made.method == "from_pretrained" and "AutoModel" in made.receiver:
            yield error(
                f"{call.receiver}.add_adapter(...) with peft before 0.22",
                why="transformers 5.24 raises ValueError: its own adapter methods need peft>=0.22.",
                fix="Use get_peft_model(model, config) of peft, or install peft>=0.22.",
                at=call.place,
            )
