# Four files that disagree, as people bring them: `hf-efficient doctor docs/disagree/*` says what each will do.
from datasets import load_from_disk
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

model = AutoModelForSequenceClassification.from_pretrained("google-bert/bert-base-uncased", num_labels=2)
args = TrainingArguments(
    "out",
    deepspeed="ds_config.json",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    max_grad_norm=0.3,
    learning_rate=2e-5,
    bf16=True,
    warmup_ratio=0.1,
)
Trainer(model=model, args=args, train_dataset=load_from_disk("train")).train()
