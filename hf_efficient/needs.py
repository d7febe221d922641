"""Requirements and remarks that several tricks share."""

from hf_efficient.trick import Need

AMPERE_OR_CPU = Need(
    capability=(8, 0), or_cpu=True, otherwise="Use fp16 (preset turing) on this GPU: its Tensor Cores know no bf16."
)
ADA_OR_CPU = Need(
    capability=(8, 9), or_cpu=True, otherwise="Use bf16 (fp16 before Ampere): Tensor Cores know 8-bit floats since Ada."
)
FAST_CPU_BF16 = Need(cpu_bf16=True, otherwise="Stay in fp32: bf16 would be emulated and slower.")
DEEPSPEED = Need(
    package="deepspeed",
    otherwise="Install torch first, since DeepSpeed would bring another one, then run "
    "`pip install 'hf-efficient[deepspeed]'`, which is deepspeed and ninja.",
)
BITSANDBYTES = Need(package="bitsandbytes", otherwise="Run `pip install 'hf-efficient[bitsandbytes]'`.")
PEFT = Need(package="peft", otherwise="Run `pip install 'hf-efficient[peft]'`.")
TRL = Need(package="trl", otherwise="Run `pip install 'hf-efficient[trl]'`.")
TORCHAO = Need(package="torchao", otherwise="Run `pip install 'hf-efficient[optimizers]'`.")
APOLLO_TORCH = Need(
    package="apollo-torch", otherwise="Run `pip install 'hf-efficient[apollo]'` (CC BY-NC 4.0: not for commercial use)."
)
SCHEDULEFREE = Need(package="schedulefree", otherwise="Run `pip install 'hf-efficient[optimizers]'`.")
COMPILED_STEP = Need(
    capability=(7, 0),
    or_cpu=True,
    otherwise="Take adamw_8bit: torchao compiles its step, and Triton supports Volta and newer GPUs only.",
)
ITEMS_COUNTED = {
    "trainer": "Call exact_accumulation(trainer) before trainer.train(): for most heads but causal language models "
    "Trainer would multiply the gradient by the accumulation steps."
}
"""What a script has to do so that accumulation is exact; a remark of the tricks that accumulate."""
