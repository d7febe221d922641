"""Setups in which the checks of lora find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

QUERY = {"r": 8, "target_modules": ["query", "value"]}
LOADED = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from peft import PeftModel
base = AutoModelForCausalLM.from_pretrained("gpt2")
model = PeftModel.from_pretrained(base, "adapter"{more})
Trainer(model=model, args=TrainingArguments()).train()
"""
OWN = """
from transformers import AutoModelForCausalLM
from peft import LoraConfig
lm = AutoModelForCausalLM.from_pretrained("gpt2")
lm.add_adapter(LoraConfig(r=4))
"""
OLD, NEW = {"packages": {"peft": "0.21.2"}}, {"packages": {"peft": "0.22.0"}}

EXAMPLES = {
    "adapters-leave-new-head-frozen": (
        [
            {"model": {"class": "RobertaForSequenceClassification"}, "peft": QUERY},
            {"model": {"class": "AutoModelForImageClassification"}, "peft": QUERY | {"modules_to_save": None}},
            {"model": {"class": "BertForTokenClassification"}, "peft": QUERY | {"lora_alpha": 16}},
            {"model": {"class": "BertForTokenClassification"}, "peft": QUERY | {"task_type": "FEATURE_EXTRACTION"}},
        ],
        [
            {"model": {"class": "RobertaForSequenceClassification"}, "peft": QUERY | {"task_type": "SEQ_CLS"}},
            {
                "model": {"class": "AutoModelForImageClassification"},
                "peft": QUERY | {"modules_to_save": ["classifier"]},
            },
            {"model": {"class": "BertForTokenClassification"}, "peft": {"r": 4, "target_modules": "all-linear"}},
            {"model": {"class": "LlamaForCausalLM"}, "peft": QUERY},
        ],
    ),
    "adapters-for-generation-on-another-head": (
        [
            {"model": {"class": "ElectraForSequenceClassification"}, "peft": QUERY | {"task_type": "CAUSAL_LM"}},
            {"model": {"class": "BertForMaskedLM"}, "peft": QUERY | {"task_type": "TaskType.CAUSAL_LM"}},
            {
                "files": {
                    "train.py": "from peft import LoraConfig, TaskType, get_peft_model\n"
                    "from transformers import AutoModelForQuestionAnswering, Trainer, TrainingArguments\n"
                    "model = AutoModelForQuestionAnswering.from_pretrained('roberta-base')\n"
                    "model = get_peft_model(model, LoraConfig(task_type=TaskType.SEQ_2_SEQ_LM, r=4))\n"
                    "Trainer(model=model, args=TrainingArguments('out'), train_dataset=rows).train()\n"
                }
            },
        ],
        [
            {"model": {"class": "ElectraForSequenceClassification"}, "peft": QUERY | {"task_type": "SEQ_CLS"}},
            {"model": {"class": "GPT2LMHeadModel"}, "peft": QUERY | {"task_type": "SEQ_CLS"}},
            {"peft": QUERY | {"task_type": "CAUSAL_LM"}},
        ],
    ),
    "adapters-loaded-frozen": (
        [
            {"files": {"train.py": LOADED.format(more="")}},
            {"files": {"train.py": LOADED.format(more=", is_trainable=False")}},
        ],
        [
            {"files": {"train.py": LOADED.format(more=", is_trainable=True")}},
            {"files": {"train.py": LOADED.format(more=", **more")}},
        ],
    ),
    "lora-options-refused": (
        [
            {"peft": {"r": 0, "target_modules": ["q_proj"]}},
            {"peft": {"r": 8, "target_modules": "all-linear", "layers_to_transform": [0, 1]}},
            {"peft": {"r": 8, "target_modules": ["q_proj"], "lora_bias": True, "use_dora": True}},
            {"peft": {"r": 8, "target_modules": ["q_proj"], "layers_pattern": "layers"}},
        ],
        [
            {"peft": {"r": 8, "target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": "layers"}},
            {"peft": {"r": "8", "target_modules": ["q_proj"], "lora_bias": True}},
        ],
    ),
    "pissa-of-quantized-weights": (
        [
            {"peft": QUERY | {"init_lora_weights": "pissa"}, "model": {"load_in_4bit": True}},
            {"peft": QUERY | {"init_lora_weights": "pissa_niter_16"}, "model": {"load_in_8bit": True}},
        ],
        [{"peft": QUERY | {"init_lora_weights": "pissa"}, "model": {"load_dtype": "bfloat16"}}],
    ),
    "add-adapter-needs-newer-peft": (
        [
            {"script": OWN, "machine": OLD},
            {"script": OWN.replace("lm", "model"), "machine": {"packages": {"peft": "0.18.1"}}},
        ],
        [{"script": OWN, "machine": NEW}, {"script": OWN.replace(".add_adapter", ".add_adapters"), "machine": OLD}],
    ),
}
