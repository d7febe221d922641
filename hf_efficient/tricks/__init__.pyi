# Made by `make generate`.
from collections.abc import Callable

from hf_efficient.trick import Trick
from hf_efficient.tricks.activation_checkpointing import activation_checkpointing as activation_checkpointing
from hf_efficient.tricks.adafactor import adafactor as adafactor
from hf_efficient.tricks.adamw_8bit import adamw_8bit as adamw_8bit
from hf_efficient.tricks.adamw_fused import adamw_fused as adamw_fused
from hf_efficient.tricks.adamw_torchao_4bit import adamw_torchao_4bit as adamw_torchao_4bit
from hf_efficient.tricks.adamw_torchao_8bit import adamw_torchao_8bit as adamw_torchao_8bit
from hf_efficient.tricks.apollo import apollo as apollo
from hf_efficient.tricks.attention import attention as attention
from hf_efficient.tricks.batch_size import batch_size as batch_size
from hf_efficient.tricks.bf16 import bf16 as bf16
from hf_efficient.tricks.compile import compile as compile
from hf_efficient.tricks.data_loading import data_loading as data_loading
from hf_efficient.tricks.evaluation import evaluation as evaluation
from hf_efficient.tricks.fp16 import fp16 as fp16
from hf_efficient.tricks.fp8 import fp8 as fp8
from hf_efficient.tricks.fsdp import fsdp as fsdp
from hf_efficient.tricks.fused_loss import fused_loss as fused_loss
from hf_efficient.tricks.galore import galore as galore
from hf_efficient.tricks.gradient_accumulation import gradient_accumulation as gradient_accumulation
from hf_efficient.tricks.gradient_clipping import gradient_clipping as gradient_clipping
from hf_efficient.tricks.length_grouping import length_grouping as length_grouping
from hf_efficient.tricks.lion_8bit import lion_8bit as lion_8bit
from hf_efficient.tricks.lora import lora as lora
from hf_efficient.tricks.neftune import neftune as neftune
from hf_efficient.tricks.packing import packing as packing
from hf_efficient.tricks.pad_to_multiple import pad_to_multiple as pad_to_multiple
from hf_efficient.tricks.qlora import qlora as qlora
from hf_efficient.tricks.schedule_free import schedule_free as schedule_free
from hf_efficient.tricks.tf32 import tf32 as tf32
from hf_efficient.tricks.zero import zero as zero

def catalogue() -> dict[str, Callable[..., Trick]]: ...
def defaults() -> tuple[Trick, ...]: ...
