"""Setups in which the checks of renamed find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

_MODELS = "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Trainer, TrainingArguments\n"
_LOAD = "AutoModelForSeq2SeqLM.from_pretrained('m', {})\n"

EXAMPLES = {
    "renamed-argument": (
        [
            {"trainer": {"fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer", "bf16": True}},
            {"sft": {"max_seq_length": 2048, "packing": True}},
            {
                "files": {
                    "run.py": f"{_MODELS}args = TrainingArguments('out', past_index=1, use_ipex=False)\n"
                    "Trainer(model=None, args=args).train()\n"
                }
            },
            {"files": {"go.sh": "accelerate launch run.py --output_dir out --evaluation_strategy epoch --bf16\n"}},
            {
                "files": {
                    "all.py": "from transformers import *\n"
                    "args = TrainingArguments('out', per_gpu_train_batch_size=4)\nTrainer(model, args).train()\n"
                }
            },
            {"files": {"sft.yaml": "output_dir: out\nlearning_rate: 1.0e-5\npacking: true\nmax_seq_length: 1024\n"}},
            {
                "files": {
                    "sft.yaml": "model_name_or_path: gpt2\noutput_dir: out\nuse_flash_attention_2: true\n"
                    "learning_rate: 1.0e-5\n",
                    "go.sh": "trl sft --config sft.yaml\n",
                }
            },
            {
                "files": {
                    "args.yaml": "model_name_or_path: gpt2\noutput_dir: out\ntorch_dtype: bfloat16\n"
                    "learning_rate: 1.0e-5\n",
                    "go.sh": "python train.py --config args.yaml\n",
                    "train.py": "from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser\n"
                    "args, model = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()\n"
                    "SFTTrainer(model=model.model_name_or_path, args=args, train_dataset=rows).train()\n",
                }
            },
        ],
        [
            {"files": {"args.yaml": "output_dir: out\nlearning_rate: 1.0e-5\nmax_seq_length: 384\nbf16: true\n"}},
            {"trainer": {"train_sampling_strategy": "group_by_length", "warmup_steps": 0.05}},
            {"trainer": {"warmup_ratio": 0.1}, "machine": {"packages": {"transformers": "5.3.0"}}},
            {
                "files": {
                    "run.py": "from dataclasses import dataclass\n"
                    f"{_MODELS}@dataclass\nclass Mine(TrainingArguments):\n    logging_dir: str = 'x'\n"
                    "args = Mine('out', logging_dir='logs')\nTrainer(model=None, args=args).train()\n"
                }
            },
        ],
    ),
    "deprecated-argument": (
        [
            {"trainer": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}},
            {"sft": {"gradient_checkpointing": True}},
        ],
        [
            {"trainer": {"activation_checkpointing": True}},
            {"trainer": {"gradient_checkpointing": True}, "machine": {"packages": {"transformers": "4.57.6"}}},
        ],
    ),
    "renamed-optimizer": (
        [{"trainer": {"optim": "adamw_hf"}}, {"sft": {"optim": "adamw_apex_fused", "max_length": 512}}],
        [{"trainer": {"optim": "adamw_torch"}}, {"trainer": {}}],
    ),
    "renamed-trainer-keyword": (
        [
            {
                "files": {
                    "a.py": f"{_MODELS}Trainer(model=model, tokenizer=AutoTokenizer.from_pretrained('m')).train()\n"
                }
            },
            {
                "files": {
                    "b.py": "from trl import SFTTrainer\n"
                    "SFTTrainer(model='m', train_dataset=rows, dataset_text_field='text', max_seq_length=512).train()\n"
                }
            },
        ],
        [
            {"files": {"a.py": f"{_MODELS}Trainer(model=model, processing_class=tokenizer).train()\n"}},
            {
                "files": {
                    "u.py": "from unsloth import FastLanguageModel\nfrom trl import SFTTrainer\n"
                    "model, tokenizer = FastLanguageModel.from_pretrained('m', load_in_4bit=True)\n"
                    "SFTTrainer(model=model, tokenizer=tokenizer, max_seq_length=512, packing=True).train()\n"
                }
            },
            {
                "files": {
                    "b.py": f"{_MODELS}class Mine(Trainer):\n    def __init__(self, *args, tokenizer=None, **more):\n"
                    "        super().__init__(*args, **more)\nMine(model=model, tokenizer=tokenizer).train()\n"
                }
            },
        ],
    ),
    "renamed-loading-keyword": (
        [
            {"files": {"a.py": _MODELS + _LOAD.format("load_in_8bit=True, device_map='auto'")}},
            {"files": {"b.py": _MODELS + _LOAD.format("use_flash_attention_2=True, torch_dtype='auto'")}},
            {"script": f"{_MODELS}AutoTokenizer.from_pretrained('m', use_auth_token=True)\n"},
            {"script": "from transformers import AutoConfig\nAutoConfig.from_pretrained('m', use_auth_token=key)\n"},
        ],
        [
            {"script": f"{_MODELS}AutoTokenizer.from_pretrained('m', token=key)\n"},
            {"files": {"a.py": _MODELS + _LOAD.format("dtype='auto', attn_implementation='sdpa'")}},
            {
                "files": {
                    "b.py": "from unsloth import FastLanguageModel\n"
                    "model, tokenizer = FastLanguageModel.from_pretrained('m', load_in_4bit=True)\n"
                }
            },
        ],
    ),
    "renamed-accelerator-keyword": (
        [
            {"accelerator": {"even_batches": False}},
            {"accelerator": {"mixed_precision": "bf16", "split_batches": True}},
            {"files": {"a.py": "from accelerate import Accelerator\naccelerator = Accelerator(logging_dir='logs')\n"}},
        ],
        [{"accelerator": {"dataloader_config": {"even_batches": False}, "project_dir": "logs"}}],
    ),
}
