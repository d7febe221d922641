"""Train a causal language model with Trainer, on one GPU, on several or on the CPU.

    accelerate launch recipes/causal_lm.py                                   # small Llama, Python's own sources
    accelerate launch recipes/causal_lm.py --model Qwen/Qwen3-0.6B --data notes.jsonl --plan lean

Rows of the data have a column `text`. The plan is the preset for your machine unless --plan names presets and tricks;
every field of TrainingArguments is a flag of its own name and wins over the plan.
"""

from transformers import Trainer, TrainingArguments, set_seed

from hf_efficient import add_adapter, exact_accumulation, make_collator, pack, training_arguments
from hf_efficient.emit.files import require_writable_folder
from hf_efficient.emit.trainer import settle
from hf_efficient.train.embedded import FROM_NOTHING
from hf_efficient.train.evaluate import exact_evaluation
from hf_efficient.train.flags import one_sentence_errors, read_flags, recipe_plan
from hf_efficient.train.load import load_causal_lm, row_length
from hf_efficient.train.resume import Resumable, checkpoint
from hf_efficient.train.run_clock import RunClock
from hf_efficient.train.summary import Outcome, run_summary
from hf_efficient.train.text import load_texts, token_rows

DEFAULTS = {"output_dir": "out/causal_lm", "logging_steps": 10, "eval_on_start": True}
TARGETS = ("trainer", "model", "peft", "collator", "env")


def main(argv: list[str] | None = None) -> Trainer:
    with one_sentence_errors():
        flags = read_flags(TrainingArguments, argv, doc=__doc__)
        defaults = DEFAULTS | (FROM_NOTHING if flags.model is None else {})
        plan = recipe_plan(flags).assume("trainer", defaults, by="recipe")
        plan = plan.assume("collator", {"pad_to_multiple_of": 8}, by="recipe")

        args = training_arguments(plan, **flags.given)  # before the model: ZeRO-3 shards weights while they load
        require_writable_folder(args.output_dir)
        resumed = checkpoint(args)
        set_seed(args.seed)

        tokenizer, model = load_causal_lm(flags.model, plan)
        model = add_adapter(plan, model)
        seq_len = row_length(flags.seq_len, model, embedded=flags.model is None)
        texts = load_texts(flags.data, seed=args.seed)
        train, evaluation = (token_rows(split, tokenizer, seq_len) for split in texts)

        clock = RunClock()
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=pack(plan, train, max_length=seq_len),
            eval_dataset=evaluation,
            data_collator=make_collator(plan, tokenizer, model),
            processing_class=tokenizer,
            callbacks=[clock, Resumable()],
        )

    exact_accumulation(trainer)
    exact_evaluation(trainer)  # where the rows do not divide among the processes
    trainer.train(resume_from_checkpoint=resumed)
    after = trainer.evaluate()["eval_loss"]
    trainer.save_model()

    if trainer.is_world_process_zero():
        speed = clock.tokens_per_second(sum(map(len, train["input_ids"])))
        outcome = Outcome(speed, clock.first_loss, after, args.output_dir, model)
        print(run_summary(settle(plan, TrainingArguments, flags.given), TARGETS, outcome))
    trainer.accelerator.end_training()
    return trainer


if __name__ == "__main__":
    main()
