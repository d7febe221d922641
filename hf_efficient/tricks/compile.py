"""torch.compile."""

from __future__ import annotations

from typing import Any, Literal

from hf_efficient.spelling import spelled
from hf_efficient.trick import Need, Rounding, Trick


@spelled
def compile(
    backend: Literal["inductor", "aot_eager", "eager"] = "inductor",
    mode: Literal["default", "reduce-overhead", "max-autotune"] | None = None,
    regional: bool = False,
) -> Trick:
    """Compile the model into fused kernels with torch.compile.

    Use it for runs long enough to pay for the compilation (half a minute to several minutes at the start, again for
    each new shape): training with fixed or padded lengths.

    Not for short runs, for batches whose length changes at every step (each new length may compile again), or while you
    are debugging. zero(3) and fsdp part the graph at their gathers; fsdp wants `regional=True`. `backend="aot_eager"`
    compiles without generating code, to find out whether it is to blame.

    inductor needs a C++ compiler on a CPU and Triton on a GPU.

    `regional=True` compiles one of the repeated layers and uses the result for all of them: take it for deep models
    and short runs. Nothing is fused across layers then. TrainingArguments has no field for it: an environment variable
    says it, which is taken back when the next plan is built.

    Published: memory -7 to -15 %; speed +16 to +45 %. Regional: 5 to 9 times less time to compile a forward pass of
    Llama models of 1B to 13B, as fast afterwards at batch size 4 (accelerate, benchmarks/torch.compile/README.md).
    """
    plugin: dict[str, Any] = {"backend": backend} | ({"mode": mode} if mode else {})
    regions: dict[str, Any] = {"use_regional_compilation": True} if regional else {}
    return Trick(
        family="compile",
        saves="memory traffic between the operations that it fuses",
        costs="compilation at the start and at each new shape",
        numerics="close",
        shows=("graphs",),
        # Measured with inductor on a CPU: 13.2 eps on a Llama after 30 updates (tests/test_promises.py prints it), and
        # 25 eps on T5, the farthest of fourteen heads (docs/promises.md).
        within=Rounding("float32", 48),
        needs=(
            Need(
                capability=(7, 0),
                or_cpu=True,
                otherwise="Leave compile out: Triton supports Volta and newer GPUs only.",
            ),
        ),
        trainer={"torch_compile": True, **{f"torch_compile_{key}": value for key, value in plugin.items()}},
        accelerator={"dynamo_plugin": plugin | regions},
        env={"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "true"} if regional else {},
        launch={"dynamo_config": {f"dynamo_{key}": value for key, value in (plugin | regions).items()}},
    )
