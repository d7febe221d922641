"""What each key of our DeepSpeed files does, and why it has the value that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Reason(NamedTuple):
    """What a key does and why this value: both a sentence or two, in Markdown."""

    does: str
    why: str


_NO_FIELD = "TrainingArguments have no field for it"
_HIDDEN = '"auto" is filled from the model\'s hidden size h by Trainer and by accelerate'
_FASTER = (
    "Copies to and from locked memory are faster and overlap with the computation; DeepSpeed's default, written out."
)
_PATH = (
    "The folder that you give to `config copy zero3_nvme DIR --nvme-path P`: on a fast local disk, with room for the "
    "host memory of the table below."
)

REASONS: Mapping[str, Reason] = {
    "zero_optimization.stage": Reason(
        "What is sharded over the cards: 1 the optimizer state, 2 the gradients too, 3 the weights too.",
        f"It is what the file is for; {_NO_FIELD}.",
    ),
    "zero_optimization.overlap_comm": Reason(
        "Gradients are reduced while the backward pass goes on.",
        "DeepSpeed's own default does so in stage 3 only.",
    ),
    "zero_optimization.contiguous_gradients": Reason(
        "Gradients are copied into one buffer as they are made, so that memory does not fragment.",
        f"DeepSpeed's default, written out; {_NO_FIELD}.",
    ),
    "zero_optimization.reduce_bucket_size": Reason(
        "How many gradients are reduced at once; a buffer of that size stands on the card, two with overlap_comm in "
        "stages 1 and 2.",
        f"Stages 1 and 2: two buffers of 200 million take 0.8 GB in 16 bits, 2 GB at DeepSpeed's default of 500 "
        f'million. Stage 3: {_HIDDEN}, as h². "auto" below stage 3 would be h² too: many small reductions.',
    ),
    "zero_optimization.allgather_bucket_size": Reason(
        "How many updated weights are sent at once after the update.",
        'As many as are reduced. "auto" is filled by nobody: DeepSpeed then takes its default of 500 million.',
    ),
    "zero_optimization.stage3_prefetch_bucket_size": Reason(
        "How many weights are gathered ahead of the layer that needs them.",
        f"{_HIDDEN}, as 0.9 h².",
    ),
    "zero_optimization.stage3_param_persistence_threshold": Reason(
        "Weights of at most so many numbers (norms, biases) are not sharded, which saves small messages.",
        f"{_HIDDEN}, as 10 h.",
    ),
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": Reason(
        "A saved model holds whole weights, in 16 bits, gathered from all cards.",
        'Without it Trainer saves no weights that `from_pretrained` reads, and `accelerator.get_state_dict` stops. '
        f'{_NO_FIELD}, and "auto" ends as `false`.',
    ),
    "zero_optimization.offload_optimizer.device": Reason(
        "Where the optimizer state and the float32 weights lie: in host memory (`cpu`) or on a disk (`nvme`). The "
        "update is computed on the CPU.",
        f"It is what the file is for; {_NO_FIELD}. torch's AdamW becomes DeepSpeed's CPU AdamW, which is compiled at "
        "the first start.",
    ),
    "zero_optimization.offload_optimizer.pin_memory": Reason("That host memory is page-locked.", _FASTER),
    "zero_optimization.offload_optimizer.nvme_path": Reason("The folder on the disk.", _PATH),
    "zero_optimization.offload_param.device": Reason(
        "Where the sharded 16-bit weights lie until a layer needs them.",
        f"It is what the file is for; {_NO_FIELD}.",
    ),
    "zero_optimization.offload_param.pin_memory": Reason("That host memory is page-locked.", _FASTER),
    "zero_optimization.offload_param.nvme_path": Reason("The folder on the disk.", _PATH),
    "bf16.enabled": Reason(
        "Weights and passes are in bfloat16, the update in float32.",
        '"auto" follows `bf16=True` or `mixed_precision="bf16"`, so that one file serves both precisions.',
    ),
    "fp16.enabled": Reason(
        "The same in float16, with a loss scale that DeepSpeed adapts.",
        '"auto" follows `fp16=True` or `mixed_precision="fp16"`.',
    ),
    "gradient_accumulation_steps": Reason(
        "Micro-batches of one update.",
        '"auto" is Trainer\'s `gradient_accumulation_steps`, or the Accelerator\'s. Without the key the engine may '
        "take 1, whatever the arguments say.",
    ),
    "gradient_clipping": Reason(
        "The norm to which the engine clips the gradients; 0 is none.",
        '"auto" is Trainer\'s `max_grad_norm`; accelerate makes 1.0 of it. Without the key DeepSpeed clips at its own '
        "default, 1.0, whatever `max_grad_norm` says.",
    ),
    "train_batch_size": Reason(
        "Rows of one update over all cards.",
        '"auto" is the product of the batch size per card, the accumulation and the number of cards, which only the '
        "launcher knows.",
    ),
    "train_micro_batch_size_per_gpu": Reason(
        "Rows of one micro-batch on one card.",
        '"auto" is Trainer\'s `per_device_train_batch_size`; in a loop the batch size of the loader that is prepared.',
    ),
}  # fmt: skip
"""Key, joined by dots -> what the page says of it. A test holds it to the keys of the files."""
