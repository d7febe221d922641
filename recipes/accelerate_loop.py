"""Train a causal language model with a loop of your own on Accelerate.

    accelerate launch recipes/accelerate_loop.py                             # small Llama, Python's own sources
    accelerate launch recipes/accelerate_loop.py --model Qwen/Qwen3-0.6B --data notes.jsonl --plan lean

Rows of the data have a column `text`. The plan is the preset for your machine unless --plan names presets and tricks.
The loop honours the fields of TrainingArguments that it reads below, and refuses the others by name.
"""

from types import SimpleNamespace

from torch.utils.data import DataLoader
from transformers import TrainingArguments, get_scheduler, set_seed

import hf_efficient as hf
from hf_efficient.emit.files import require_writable_folder
from hf_efficient.emit.loop import settle_loop
from hf_efficient.train.embedded import FROM_NOTHING
from hf_efficient.train.evaluate import mean_label_loss
from hf_efficient.train.flags import one_sentence_errors, read_flags, recipe_plan
from hf_efficient.train.load import load_causal_lm, row_length
from hf_efficient.train.loop_fields import loop_plan, run_length
from hf_efficient.train.loop_state import LoopState
from hf_efficient.train.save import save_model
from hf_efficient.train.summary import Outcome, run_summary
from hf_efficient.train.text import load_texts, token_rows

DEFAULTS = {"output_dir": "out/accelerate_loop", "logging_steps": 10}
TARGETS = ("accelerator", "dataloader", "collator", "loop", "optimizer", "model", "peft", "torch", "env")


def main(argv: list[str] | None = None) -> None:
    with one_sentence_errors():
        flags = read_flags(TrainingArguments, argv, doc=__doc__)
        plan = loop_plan(recipe_plan(flags), flags.given, DEFAULTS | (FROM_NOTHING if flags.model is None else {}))
        plan = plan.assume("collator", {"pad_to_multiple_of": 8}, by="recipe")
        options = SimpleNamespace(**plan["loop"])
        require_writable_folder(options.output_dir)

        accelerator = hf.make_accelerator(plan)  # before the model: ZeRO-3 shards weights while they load
        state = LoopState(plan, accelerator)  # and the checkpoint that it goes on from
        set_seed(options.seed)
        tokenizer, model = load_causal_lm(flags.model, plan)
        seq_len = row_length(flags.seq_len, model, embedded=flags.model is None)
        model = hf.prepare_model(plan, model)
        train, evaluation = (token_rows(s, tokenizer, seq_len) for s in load_texts(flags.data, seed=options.seed))

        train, collate = hf.pack(plan, train, max_length=seq_len), hf.make_collator(plan, tokenizer, model)
        loader = DataLoader(**hf.dataloader_keywords(plan, dataset=train, shuffle=True, collate_fn=collate))
        padded = hf.make_collator(plan, tokenizer, packed=False)
        held_out = DataLoader(evaluation, batch_size=options.per_device_eval_batch_size, collate_fn=padded)
        optimizer = hf.make_optimizer(plan, model, lr=options.learning_rate, weight_decay=options.weight_decay)
        model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)

        updates, warmup = run_length(plan["loop"], len(loader), accelerator.gradient_accumulation_steps)
        # After prepare, which may exchange the optimizer, and not prepared: it steps once per update by itself.
        scheduler = get_scheduler(options.lr_scheduler_type, optimizer, warmup, updates)

    before = mean_label_loss(model, held_out, accelerator)
    state.start(scheduler, updates)
    model.train()
    optimizer.train()
    while state.done < state.updates:
        for window in hf.windows(state.batches(loader), accelerator):
            for batch in window:
                window.backward(model(**batch, num_items_in_batch=window.items).loss)
            hf.clip(plan, accelerator, model)
            optimizer.step()
            if not accelerator.optimizer_step_was_skipped:
                scheduler.step()
            optimizer.zero_grad()
            state.updated(window)  # shows its loss, and saves a checkpoint where one is due
    speed = state.end()

    optimizer.eval()  # schedule_free evaluates and saves averaged weights; others do nothing here
    after = mean_label_loss(model, held_out, accelerator)
    save_model(accelerator, model, tokenizer, options.output_dir)
    if accelerator.is_main_process:
        print(run_summary(settle_loop(plan), TARGETS, Outcome(speed, before, after, options.output_dir, model)))
    accelerator.end_training()


if __name__ == "__main__":
    main()
