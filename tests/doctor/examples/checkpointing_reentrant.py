"""Setups in which the checks of checkpointing_reentrant find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

OLD = {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": True}}
NEW = {"activation_checkpointing": True}
PEFT = {"r": 8, "target_modules": ["query", "value"]}
TWO = {"processes": 2, "launcher": "torchrun"}
QLORA = """
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained("huggyllama/llama-7b", quantization_config=four)
model = prepare_model_for_kbit_training(model{more})
model = get_peft_model(model, LoraConfig(target_modules="all-linear"))
Trainer(model=model, args=TrainingArguments(bf16=True)).train()
"""
SHELL = "torchrun --nproc_per_node 4 train.py\n"
WRAPPED = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("gpt2", dtype=torch.float32).cuda()
model.activation_checkpointing_enable(activation_checkpointing_kwargs={{"use_reentrant": {reentrant}}})
model = DDP(model, find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters())
model.train()
for batch in torch.load("b.pt"):
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
VISION = """
import torch
from accelerate import Accelerator
from transformers import AutoModelForImageClassification
from peft import LoraConfig, get_peft_model
accelerator = Accelerator()
model = AutoModelForImageClassification.from_pretrained("facebook/deit-base")
{before}
model = get_peft_model(model, LoraConfig(r=8, target_modules=["query"], modules_to_save=["classifier"]))
{after}
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer = accelerator.prepare(model, optimizer)
model.train()
for batch in torch.load("b.pt"):
    accelerator.backward(model(**batch).loss)
    optimizer.step()
"""
ENABLE = 'model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})'
ZERO3 = {"zero_optimization": {"stage": 3}}
OLDER = {"packages": {"deepspeed": "0.18.4"}}

EXAMPLES = {
    "reentrant-checkpoint-of-frozen-inputs": (
        [
            {"files": {"train.py": VISION.format(before="", after=ENABLE)}},
            {"trainer": OLD, "model": {"class": "Wav2Vec2ForCTC", "model_type": "wav2vec2"}, "peft": PEFT},
            {"trainer": OLD, "model": {"class": "AutoModelForImageClassification", "name": "my/model"}, "peft": PEFT},
            {
                "trainer": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
                "model": {"class": "Dinov2ForImageClassification"},
                "peft": PEFT,
            },
        ],
        [
            {"trainer": OLD, "model": {"class": "BertForMaskedLM", "model_type": "bert"}, "peft": PEFT},
            {"files": {"train.py": VISION.format(before=ENABLE, after="")}},
            {"trainer": NEW, "model": {"class": "Wav2Vec2ForCTC", "model_type": "wav2vec2"}, "peft": PEFT},
            {"trainer": OLD, "model": {"class": "MyAudioModel"}, "peft": PEFT},
            {"trainer": OLD, "model": {"class": "ViTForImageClassification", "model_type": "vit"}},
        ],
    ),
    "ddp-find-unused-with-reentrant-checkpoint": (
        [
            TWO | {"trainer": OLD, "model": {"class": "BertForMaskedLM"}, "peft": PEFT},
            TWO | {"sft": OLD | {"ddp_find_unused_parameters": True}, "model": {"class": "Qwen2ForCausalLM"}},
            {"files": {"train.py": QLORA.format(more=""), "run.sh": SHELL}, "gpu": "A100-40GB"},
            {"files": {"train.py": WRAPPED.format(reentrant="True")}},
        ],
        [
            TWO | {"trainer": OLD, "model": {"class": "BertForMaskedLM"}},
            TWO | {"trainer": OLD | {"ddp_static_graph": True}, "peft": PEFT},
            {"trainer": OLD, "peft": PEFT, "processes": 1},
            {
                "files": {
                    "train.py": QLORA.format(more=', gradient_checkpointing_kwargs={"use_reentrant": False}'),
                    "run.sh": SHELL,
                }
            },
            {"files": {"train.py": WRAPPED.format(reentrant="False")}},
        ],
    ),
    "zero3-checkpoint-of-frozen-parameters": (
        [
            {"trainer": NEW, "deepspeed": ZERO3, "peft": PEFT, "machine": OLDER},
            {
                "trainer": {"gradient_checkpointing": True},
                "launch": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}},
                "peft": PEFT,
                "machine": {"packages": {"deepspeed": "0.19.2"}},
            },
        ],
        [
            {"trainer": NEW, "deepspeed": ZERO3, "peft": PEFT, "machine": {"packages": {"deepspeed": "0.19.3"}}},
            {"trainer": NEW, "deepspeed": {"zero_optimization": {"stage": 2}}, "peft": PEFT, "machine": OLDER},
            {"trainer": NEW, "deepspeed": ZERO3, "machine": OLDER},
        ],
    ),
    "trl-forces-reentrant": (
        [
            {"sft": {"max_length": 512}, "deepspeed": ZERO3, "peft": PEFT},
            {
                "sft": NEW | {"gradient_checkpointing_kwargs": {"use_reentrant": False}},
                "deepspeed": ZERO3,
                "peft": PEFT,
            },
        ],
        [{"sft": OLD, "deepspeed": ZERO3, "peft": PEFT}, {"sft": NEW, "deepspeed": ZERO3}],
    ),
}
