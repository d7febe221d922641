# Made by `make generate`.
from collections.abc import Callable

from hf_efficient.trick import Trick
from hf_efficient.tricks.activation_checkpointing import activation_checkpointing as activation_checkpointing
from hf_efficient.tricks.adafactor import adafactor as adafactor
from hf_efficient.tricks.adamw_8bit import adamw_8bit as adamw_8bit
from hf_efficient.tricks.adamw_fused import adamw_fused as adamw_fused
from hf_efficient.tricks.batch_size import batch_size as batch_size
from hf_efficient.tricks.bf16 import bf16 as bf16
from hf_efficient.tricks.compile import compile as compile
from hf_efficient.tricks.data_loading import data_loading as data_loading
from hf_efficient.tricks.fp16 import fp16 as fp16
from hf_efficient.tricks.fsdp import fsdp as fsdp
from hf_efficient.tricks.gradient_accumulation import gradient_accumulation as gradient_accumulation
from hf_efficient.tricks.gradient_clipping import gradient_clipping as gradient_clipping
from hf_efficient.tricks.tf32 import tf32 as tf32
from hf_efficient.tricks.zero import zero as zero

def catalogue() -> dict[str, Callable[..., Trick]]: ...
