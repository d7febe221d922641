"""A training script becomes subjects: what it says is read, what it computes is unknown, nothing is executed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from hf_efficient.reading.document import settled
from hf_efficient.reading.installed import folder
from hf_efficient.reading.script import Script
from hf_efficient.reading.script_setup import setups
from hf_efficient.reading.settings import UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

IMPORTS = """
import os
import json
import torch
import bitsandbytes as bnb
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.utils import *
from datasets import load_dataset, load_from_disk, IterableDataset
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from torch.utils.data import DataLoader
from transformers import *
from trl import SFTConfig, SFTTrainer, DPOConfig, DPOTrainer, GRPOConfig, TrlParser, ModelConfig, ScriptArguments
"""


def read(source: str) -> list[Setup]:
    return setups(Script(IMPORTS + source, "train.py"))


def one(source: str) -> Setup:
    found = read(source)
    assert len(found) == 1
    return found[0]


def said(settings: Settings | None) -> dict[str, object]:
    assert settings is not None
    return settings.values


def line_of(source: str, text: str) -> int:
    return (IMPORTS + source).splitlines().index(next(x for x in (IMPORTS + source).splitlines() if text in x)) + 1


LORA = """
BASE = "meta-llama/Llama-3.1-8B"
USE_4BIT = True
if USE_4BIT:
    quant = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                               bnb_4bit_compute_dtype=getattr(torch, "bfloat16"))
else:
    quant = None

class Settings:
    rate = 2e-4
    rows = 4

def make_model(name, quantization):
    loaded = AutoModelForCausalLM.from_pretrained(name, quantization_config=quantization, torch_dtype=torch.bfloat16,
        attn_implementation="flash_attention_2", device_map={"": 0})
    loaded.config.use_cache = False
    loaded = prepare_model_for_kbit_training(loaded, use_gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False})
    return get_peft_model(loaded, LoraConfig(r=Settings.rows * 4, target_modules="all-linear",
        modules_to_save=["lm_head"]))

def main():
    model = make_model(BASE, quant)
    args = TrainingArguments("out", learning_rate=Settings.rate, per_device_train_batch_size=Settings.rows, bf16=True,
        gradient_checkpointing_kwargs=dict(use_reentrant=True))
    args.max_grad_norm = 0.3
    trainer = Trainer(model, args, train_dataset=load_dataset("text")["train"], compute_metrics=len)
    trainer.train()

main()
"""


def test_a_quantized_adapter_that_a_function_makes() -> None:
    setup = one(LORA)
    assert said(setup.trainer) == {
        "output_dir": "out", "learning_rate": 2e-4, "per_device_train_batch_size": 4, "bf16": True,
        "max_grad_norm": 0.3,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    }  # fmt: skip
    model = said(setup.model)
    assert model["load_in_4bit"] is True
    assert model["bnb_4bit_compute_dtype"] == "torch.bfloat16"
    assert model["name"] == "meta-llama/Llama-3.1-8B"
    assert model["use_cache"] is False
    assert model["class"] == "AutoModelForCausalLM"
    assert model["attn_implementation"] == "flash_attention_2"
    assert said(setup.peft)["r"] == 16
    assert said(setup.peft)["prepared_for_kbit"] is True
    assert said(setup.peft)["gradient_checkpointing_kwargs"] == {"use_reentrant": False}
    assert said(setup.eval) == {
        "eval_dataset": False, "compute_metrics": True, "preprocess_logits_for_metrics": False,
    }  # fmt: skip
    assert setup.references == ("meta-llama/Llama-3.1-8B",)


def test_each_value_has_its_line() -> None:
    setup = one(LORA)
    assert setup.trainer is not None
    assert setup.model is not None
    assert setup.peft is not None
    assert setup.trainer.where("max_grad_norm").line == line_of(LORA, "args.max_grad_norm")
    assert setup.trainer.where("bf16").line == line_of(LORA, "bf16=True")
    assert setup.model.where("attn_implementation").line == line_of(LORA, "attn_implementation")
    assert setup.model.where("load_in_4bit").line == line_of(LORA, "load_in_4bit=True")
    assert setup.peft.where("modules_to_save").line == line_of(LORA, "modules_to_save")


LOOP = """
def training_function(config, cli):
    accelerator = Accelerator(mixed_precision=cli.precision, gradient_accumulation_plugin=GradientAccumulationPlugin(
        num_steps=config["steps"]), dataloader_config=DataLoaderConfiguration(split_batches=True),
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])
    model = AutoModelForSequenceClassification.from_pretrained("google/electra-small-discriminator")
    model = model.to(accelerator.device)
    decay = [p for n, p in model.named_parameters() if "bias" not in n]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}], lr=config["lr"])
    def collate(rows):
        return tokenizer.pad(rows, padding="longest", pad_to_multiple_of=8, return_tensors="pt")
    train = DataLoader(load_from_disk("a"), shuffle=True, collate_fn=collate, batch_size=16, num_workers=2)
    held_out = DataLoader(load_from_disk("b"), collate_fn=collate, batch_size=32)
    total = len(train) * config["epochs"] // config["steps"]
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=100, num_training_steps=total)
    model, optimizer, train, held_out, schedule = accelerator.prepare(model, optimizer, train, held_out, schedule)
    for epoch in range(config["epochs"]):
        model.train()
        for batch in train:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
        model.eval()
        for batch in held_out:
            model(**batch)

if __name__ == "__main__":
    training_function({"lr": 5e-5, "steps": 4, "epochs": 3}, None)
"""


def test_a_loop_on_accelerate() -> None:
    setup = one(LOOP)
    assert setup.trainer is None
    accelerator = setup.accelerator
    assert accelerator is not None
    assert accelerator.get("gradient_accumulation_steps") == 4
    assert accelerator.get("dataloader_config.split_batches") is True
    assert accelerator.get("ddp_find_unused_parameters") is True
    assert not accelerator.knows("mixed_precision")
    assert said(setup.model)["training"] is True
    assert said(setup.model)["class"] == "AutoModelForSequenceClassification"
    assert said(setup.optimizer) == {"class": "AdamW", "name": "torch.optim.AdamW", "lr": 5e-5}
    assert said(setup.dataloader)["batch_size"] == 16
    assert said(setup.dataloader)["num_workers"] == 2
    data = said(setup.data)
    assert (data["kind"], data["padding"], data["pad_to_multiple_of"]) == ("map", "longest", 8)
    scheduler = said(setup.scheduler)
    assert scheduler["prepared"] is True
    assert scheduler["num_warmup_steps"] == 100
    assert "len(train)" in str(scheduler["num_training_steps_text"])


def test_a_mode_that_stays_after_the_evaluation() -> None:
    left = LOOP.replace("        model.train()\n", "").replace("    for epoch", "    model.train()\n    for epoch")
    assert said(one(left).model)["training"] is False
    asked = LOOP.replace("        model.train()\n", "").replace("        model.eval()\n", "")
    assert "training" not in said(one(asked).model)


def test_alternatives_in_branches_and_several_trainers() -> None:
    branches = read("""
if torch.cuda.is_available():
    args = TrainingArguments("a", fp16=True)
else:
    args = TrainingArguments("b", use_cpu=True)
Trainer(model=AutoModel.from_pretrained("x"), args=args).train()
""")
    assert [said(setup.trainer)["output_dir"] for setup in branches] == ["a", "b"]
    twice = read("""
model = AutoModel.from_pretrained("x")
args = TrainingArguments("first", bf16=True)
Trainer(model, args).train()
args = TrainingArguments("second", tf32=True)
Trainer(model, args).train()
""")
    assert [said(setup.trainer) for setup in twice] == [
        {"output_dir": "first", "bf16": True},
        {"output_dir": "second", "tf32": True},
    ]


def test_a_constant_condition_leaves_one_alternative() -> None:
    setup = one("""
FULL = False
if FULL:
    args = TrainingArguments("a", fp16=True)
else:
    args = TrainingArguments("b", bf16=True)
    args.fp16 = FULL
model = AutoModel.from_pretrained("x", dtype="float32" if FULL else "bfloat16")
if FULL:
    model.half()
Trainer(model, args)
""")
    assert said(setup.trainer) == {"output_dir": "b", "bf16": True, "fp16": False}
    assert said(setup.model)["load_dtype"] == "bfloat16"
    assert "half" not in said(setup.model)


def test_what_is_computed_is_unknown() -> None:
    setup = one("""
args = TrainingArguments("a", bf16=torch.cuda.is_bf16_supported(), **extra)
if os.environ.get("X"):
    args.tf32 = True
model = AutoModelForCausalLM.from_pretrained(name)
if half:
    model = model.half()
Trainer(model, args)
""")
    assert setup.trainer is not None
    assert setup.trainer.open
    assert setup.trainer.get("bf16") is UNKNOWN
    assert setup.trainer.get("tf32") is UNKNOWN
    assert said(setup.model)["half"] is UNKNOWN
    assert said(setup.model)["name"] is UNKNOWN


@pytest.mark.parametrize(
    "parsing",
    [
        "parser = HfArgumentParser((Own, TrainingArguments))\nm, args = parser.parse_args_into_dataclasses()",
        "parser = HfArgumentParser(TrainingArguments)\nargs = parser.parse_args_into_dataclasses()[0]",
        "m, args, _ = TrlParser((ScriptArguments, DPOConfig, ModelConfig)).parse_args_and_config()",
        "def get():\n    return HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n(args,) = get()",
    ],
)
def test_arguments_of_the_command_line_are_open(parsing: str) -> None:
    setup = one(f"{parsing}\nargs.remove_unused_columns = False\nTrainer(model=model, args=args)")
    assert setup.trainer is not None
    assert setup.trainer.open
    assert setup.trainer.get("bf16") is UNKNOWN


def test_a_class_of_the_script_gives_defaults() -> None:
    setup = one("""
from dataclasses import dataclass, field
@dataclass
class Mine(TrainingArguments):
    bf16: bool = field(default=True)
    optim: str = "adamw_bnb_8bit"
args = Mine(output_dir="o", optim="sgd")
Trainer(AutoModel.from_pretrained("x"), args)
""")
    assert said(setup.trainer) == {"bf16": True, "optim": "sgd", "output_dir": "o"}


def test_configurations_of_trl_bring_their_defaults() -> None:
    sft = settled(
        one(
            'SFTTrainer(model="Qwen/Qwen3-0.6B", args=SFTConfig("o", packing=True, '
            'model_init_kwargs={"dtype": "bfloat16", "attn_implementation": "sdpa"}), peft_config=LoraConfig(r=8))'
        )
    )
    assert sft.sft is not None
    assert sft.sft.get("gradient_checkpointing") is True
    assert sft.sft.get("packing") is True
    assert sft.model is not None
    assert sft.model.get("load_dtype") == "bfloat16"
    assert sft.model.get("name") == "Qwen/Qwen3-0.6B"
    assert sft.peft is not None
    assert sft.peft.get("r") == 8
    dpo = settled(
        one('args = DPOConfig("o", beta=0.2)\nDPOTrainer(model, None, args, train_dataset=load_dataset("x"))')
    )
    assert dpo.sft is None
    assert dpo.trainer is not None
    assert dpo.trainer.get("bf16") is True
    assert dpo.trainer.get("gradient_checkpointing") is True
    assert dpo.trainer.get("beta") == 0.2
    half = settled(one('DPOTrainer(model, args=DPOConfig("o", fp16=True))'))
    assert half.trainer is not None
    assert half.trainer.get("bf16") is False
    none = settled(one('SFTTrainer("gpt2", train_dataset=load_dataset("x", split="train"))'))
    assert none.sft is not None
    assert not none.sft.open
    assert none.sft.get("gradient_checkpointing") is True


def test_arguments_that_cannot_be_seen_are_open() -> None:
    setup = one("def build(model, args):\n    return Trainer(model=model, args=args)")
    assert setup.trainer is not None
    assert setup.trainer.open
    assert setup.model is not None
    assert setup.model.open


@pytest.mark.parametrize(
    ("source", "files"),
    [
        ('args = TrainingArguments("o", deepspeed="ds/zero3.json")\nTrainer(m, args)', ("ds/zero3.json",)),
        ('with open("z.json") as f:\n    ds = json.load(f)\nTrainer(m, TrainingArguments(deepspeed=ds))', ("z.json",)),
        ('ds = json.load(open(os.path.join("conf", "z.json")))\nTrainer(m, TrainingArguments("o", deepspeed=ds))',
         ("conf/z.json",)),
        ('a = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config="p.json"))', ("p.json",)),
        ('import deepspeed\ne, *_ = deepspeed.initialize(model=m, config="e.json")', ("e.json",)),
    ],
)  # fmt: skip
def test_files_of_deepspeed_that_the_script_names(source: str, files: tuple[str, ...]) -> None:
    assert one(source).references == files


def test_a_configuration_of_deepspeed_in_the_script() -> None:
    source = """
config = {
    "zero_optimization": {
        "stage": 2,
    },
    "bf16": {"enabled": True},
}
config["gradient_clipping"] = 1.0
args = TrainingArguments("o", deepspeed=config)
Trainer(AutoModel.from_pretrained("x"), args)
"""
    setup = one(source)
    assert setup.deepspeed is not None
    assert setup.deepspeed.get("zero_optimization.stage") == 2
    assert setup.deepspeed.get("gradient_clipping") == 1.0
    assert setup.deepspeed.where("zero_optimization.stage").line == line_of(source, '"stage": 2')
    loop = one("""
import deepspeed
from deepspeed.ops.adam import DeepSpeedCPUAdam
model = torch.nn.Linear(4, 4)
optimizer = DeepSpeedCPUAdam(model.parameters(), lr=1e-3)
engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config={"train_batch_size": 8})
""")
    assert said(loop.deepspeed) == {"train_batch_size": 8}
    assert said(loop.optimizer)["class"] == "DeepSpeedCPUAdam"
    assert said(loop.model)["own_module"] is True


def test_changed_dicts_are_followed_or_unknown() -> None:
    setup = one("""
config = {"stage": 2}
if torch.cuda.device_count() > 1:
    config["stage"] = 3
Trainer(m, TrainingArguments("o", deepspeed=config))
""")
    assert setup.deepspeed is not None
    assert setup.deepspeed.get("stage") is UNKNOWN


@pytest.mark.parametrize(
    ("dataset", "kind", "shards"),
    [
        (
            'load_dataset("json", data_files=["a.json", "b.json"], split="train", streaming=True).shuffle(seed=1)',
            "iterable",
            2,
        ),
        ('load_dataset("json", data_files={"train": ["a", "b", "c"]}, streaming=True)["train"].map(f)', "iterable", 3),
        ('load_dataset("c4", streaming=True)["train"]', "iterable", UNKNOWN),
        ('load_from_disk("x").to_iterable_dataset(num_shards=16)', "iterable", 16),
        ('IterableDataset.from_generator(g, gen_kwargs={"files": ["a", "b"]})', "iterable", 2),
        ('load_dataset("x")["train"].map(f).filter(g)', "map", None),
        ('load_dataset("x", streaming=flag)', UNKNOWN, None),
        ("something(x)", UNKNOWN, None),
    ],
)
def test_kinds_of_datasets(dataset: str, kind: object, shards: object) -> None:
    data = said(one(f'd = {dataset}\nTrainer(m, TrainingArguments("o"), train_dataset=d)').data)
    assert data["kind"] is kind or data["kind"] == kind
    assert data.get("num_shards") is shards or data.get("num_shards") == shards


def test_an_iterable_class_that_asks_for_its_worker() -> None:
    source = """
def mine(rows):
    info = torch.utils.data.get_worker_info()
    return rows if info is None else rows[info.id :: info.num_workers]
class Base(torch.utils.data.IterableDataset):
    def rows(self):
        return self.held
class Stream(Base):
    def __iter__(self):
        yield from mine(self.rows())
Trainer(m, TrainingArguments("o"), train_dataset=Stream())
"""
    assert said(one(source).data)["sharded_by_worker"] is True
    assert said(one(source.replace("mine(self.rows())", "self.rows()")).data)["sharded_by_worker"] is False


@pytest.mark.parametrize(
    ("collator", "padding"),
    [
        ("data_collator=DataCollatorWithPadding(t)", "longest"),
        ('data_collator=DataCollatorForSeq2Seq(t, padding="max_length", max_length=64)', "max_length"),
        ("data_collator=DataCollatorForTokenClassification(t, padding=False)", "none"),
        ("data_collator=default_data_collator", "none"),
        ("data_collator=DataCollatorWithFlattening()", "none"),
        ("processing_class=t", "longest"),
        ("data_collator=lambda rows: t.pad(rows, padding='max_length', max_length=9)", "max_length"),
    ],
)
def test_padding(collator: str, padding: str) -> None:
    setup = one(f't = AutoTokenizer.from_pretrained("x")\nTrainer(m, TrainingArguments("o"), {collator})')
    assert said(setup.data)["padding"] == padding


def test_rows_that_are_padded_before_the_collator() -> None:
    setup = one("""
def tokenize(rows):
    return t(rows["text"], truncation=True, padding="max_length", max_length=128)
d = load_dataset("x")["train"].map(tokenize, batched=True)
Trainer(m, TrainingArguments("o"), train_dataset=d, processing_class=t)
""")
    assert said(setup.data)["padding"] == "max_length"
    assert said(setup.data)["max_length"] == 128


def test_optimizers_that_a_trainer_gets() -> None:
    setup = one("""
model = AutoModel.from_pretrained("x")
kind = bnb.optim.PagedAdamW8bit
opt = kind(model.parameters(), lr=1e-4)
Trainer(model, TrainingArguments("o"), optimizers=(opt, get_constant_schedule_with_warmup(opt, 50)))
""")
    assert said(setup.optimizer) == {
        "class": "PagedAdamW8bit", "name": "bitsandbytes.optim.PagedAdamW8bit", "lr": 1e-4,
        "trainer_scheduler": "get_constant_schedule_with_warmup",
    }  # fmt: skip
    assert said(setup.scheduler)["num_warmup_steps"] == 50


def test_models_that_are_made_and_not_loaded() -> None:
    fresh = one('m = AutoModelForCausalLM.from_config(GPT2Config(n_layer=2))\nTrainer(m, TrainingArguments("o"))')
    assert said(fresh.model)["load_dtype"] == "float32"
    like = one('c = AutoConfig.from_pretrained("x")\nTrainer(AutoModel.from_config(c), TrainingArguments("o"))')
    assert said(like.model)["load_dtype"] is UNKNOWN
    cast = one(
        'm = AutoModel.from_pretrained("x").to("cuda", dtype=torch.bfloat16)\nTrainer(m, TrainingArguments("o"))'
    )
    assert said(cast.model)["cast_dtype"] == "bfloat16"
    assert said(cast.model)["half"] is True
    moved = one('m = AutoModel.from_pretrained("x").to("cuda")\nTrainer(torch.compile(m), TrainingArguments("o"))')
    assert "cast_dtype" not in said(moved.model)
    assert said(moved.model)["compiled"] is True


def test_treatment_of_the_model() -> None:
    model = said(
        one("""
model = AutoModelForCausalLM.from_pretrained("x", dtype=torch.float16)
teacher = AutoModelForCausalLM.from_pretrained("y", dtype=torch.bfloat16)
teacher.eval()
teacher.requires_grad_(False)
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
model.requires_grad_(False)
Trainer(model, TrainingArguments("o"))
""").model
    )
    assert model["name"] == "x"
    assert model["activation_checkpointing"] is True
    assert model["use_reentrant"] is True
    assert model["frozen"] is True
    assert "training" not in model


def test_environment() -> None:
    env = one("""
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if x:
    os.environ["NCCL_P2P_DISABLE"] = "1"
""").env
    assert env is not None
    assert env.get("CUDA_VISIBLE_DEVICES") == "0,1"
    assert env.get("NCCL_P2P_DISABLE") is UNKNOWN
    assert env.get("TOKENIZERS_PARALLELISM") is UNKNOWN


def test_other_trainers_are_no_trainers() -> None:
    setup = one("import pytorch_lightning as pl\npl.Trainer(accelerator='gpu').fit(m)")
    assert setup.trainer is None


def test_names_in_circles_end() -> None:
    assert one("a = b\nb = a\nargs = TrainingArguments(a, bf16=b)\nTrainer(a, args)").trainer is not None
    lines = "\n".join(f"x{i} = [x{i - 1}, x{i - 1}]" for i in range(1, 60))
    began = time.perf_counter()
    assert one(f"x0 = 1\n{lines}\nTrainer(m, TrainingArguments(x59))").trainer is not None
    assert time.perf_counter() - began < 2


def test_keywords_that_a_dict_gives() -> None:
    setup = one("""
given = dict(model=AutoModel.from_pretrained("x"), compute_metrics=len)
given["args"] = TrainingArguments("o", bf16=True)
Trainer(**given)
""")
    assert said(setup.trainer) == {"output_dir": "o", "bf16": True}
    assert said(setup.model)["name"] == "x"
    assert said(setup.eval)["compute_metrics"] is True


def test_defaults_of_a_parsed_class_can_be_told_otherwise() -> None:
    setup = one("""
@dataclass
class Mine(TrainingArguments):
    optim: str = "adafactor"
(args,) = HfArgumentParser(Mine).parse_args_into_dataclasses()
Trainer(m, args)
""")
    assert setup.trainer is not None
    assert setup.trainer.get("optim") is UNKNOWN
    assert setup.trainer.defaults["optim"] == "adafactor"


def test_a_trainer_of_its_own_may_make_its_arguments() -> None:
    setup = one("""
class Mine(Trainer):
    def __init__(self, model):
        super().__init__(model, make_arguments())
Mine(model)
""")
    assert setup.trainer is not None
    assert setup.trainer.open


def test_a_model_that_a_function_makes_for_the_trainer() -> None:
    setup = one("""
def fresh():
    return AutoModel.from_pretrained("x", dtype="float16")
Trainer(model_init=fresh, args=TrainingArguments("o"))
""")
    assert said(setup.model) == {"class": "AutoModel", "name": "x", "load_dtype": "float16"}


def test_the_engine_is_the_model_too() -> None:
    setup = one("""
import deepspeed
net = AutoModel.from_pretrained("x")
engine, _, _, _ = deepspeed.initialize(model=net, config="ds.json")
engine.eval()
for batch in rows:
    engine.backward(engine(batch).loss)
    engine.step()
""")
    assert said(setup.model)["training"] is False


def test_comparisons_of_constants_choose_a_branch() -> None:
    setup = one("""
MODE = "lora"
model = AutoModel.from_pretrained("x")
if MODE == "lora":
    model = get_peft_model(model, LoraConfig(r=4))
else:
    model.half()
Trainer(model, TrainingArguments("o"))
""")
    assert said(setup.peft)["r"] == 4
    assert "half" not in said(setup.model)


def test_fields_that_unsloth_takes_without_a_configuration() -> None:
    setup = one("""
from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained(model_name="x", load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=32, target_modules=["q_proj"])
SFTTrainer(model=model, args=SFTConfig("o"))
""")
    assert said(setup.peft) == {"r": 32, "target_modules": ["q_proj"]}
    assert said(setup.model)["name"] == "x"
    assert said(setup.model)["load_in_4bit"] is True


def test_rows_that_are_chosen_for_the_evaluation() -> None:
    held = 'd = load_from_disk("x").select(range(300)).map(f)'
    setup = one(f'{held}\nTrainer(m, TrainingArguments("o"), eval_dataset=d)')
    assert said(setup.eval)["rows"] == 300


def test_many_lines_are_read_in_time() -> None:
    steps = "\n".join(f"if c{i}:\n    m = m.to({i})" for i in range(150))
    functions = "\n".join(f"def f{i}(a):\n    return TrainingArguments('x{i}', bf16=a)" for i in range(300))
    began = time.perf_counter()
    assert len(read(f"{functions}\nm = AutoModel.from_pretrained('x')\n{steps}\nTrainer(m, args)")) == 1
    assert time.perf_counter() - began < 5


PACKAGES = (
    "trl/scripts/*.py",
    "accelerate/test_utils/scripts/*.py",
    "accelerate/test_utils/scripts/external_deps/*.py",
)
RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.py"))


def examples() -> list[Path]:
    site = folder("trl")
    return (
        RECIPES + [path for one in PACKAGES for path in sorted(site.parent.glob(one))] if site is not None else RECIPES
    )


@pytest.mark.parametrize("path", examples(), ids=lambda path: path.name)
def test_scripts_of_others_are_read(path: Path) -> None:
    script = Script(path.read_text(encoding="utf-8"), path.name)
    found = setups(script)
    assert 1 <= len(found) <= 8
    for setup in found:
        assert settled(setup) is not None


def test_reading_imports_nothing_heavy() -> None:
    import subprocess

    code = "import sys; from hf_efficient.reading.script import Script\n"
    code += "from hf_efficient.reading.script_setup import setups\n"
    code += (
        f"setups(Script({LORA!r}))\nprint([n for n in ('torch', 'transformers', 'trl', 'peft') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
