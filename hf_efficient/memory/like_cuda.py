"""What CUDA does otherwise than the CPU on which a step is traced: autocast's lists, dropout's masks, attention."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F  # noqa: N812, its usual name
from torch.overrides import TorchFunctionMode

from hf_efficient.memory.kernels import attention, ctc_loss, grouped_mm

# Lists of torch.amp, "CUDA Ops that can autocast to float16" and "... to float32".
_LOW = (
    "__matmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d linear matmul mm mv prelu"
)
_HIGH = (
    "__pow__ __rdiv__ __rpow__ __rtruediv__ acos asin binary_cross_entropy_with_logits cosh cosine_embedding_loss "
    "cdist cosine_similarity cross_entropy cumprod cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss "
    "interpolate kl_div l1_loss layer_norm log log10 log_softmax log1p log2 logsumexp margin_ranking_loss mse_loss "
    "multilabel_margin_loss multi_margin_loss nll_loss norm normalize pdist poisson_nll_loss pow prod reciprocal "
    "rms_norm rsqrt sinh smooth_l1_loss soft_margin_loss softmax softmin softplus sum renorm tan "
    "triplet_margin_loss vector_norm"
)


def _functions(names: str) -> frozenset[Any]:
    """Return every form of the named functions: of torch, of torch.nn.functional and the methods of a tensor."""
    places = (torch, F, torch.Tensor, torch._C._nn, torch.linalg)
    return frozenset(found for name in names.split() for place in places if (found := getattr(place, name, None)))


LOW, HIGH = _functions(_LOW), _functions(_HIGH)
SET_OUTPUT = _functions("softmax log_softmax sum prod cumsum cumprod norm vector_norm")
"""Those of HIGH that do not cast their input where they are told the dtype of their output."""
GROUPED = frozenset(
    found for found in (getattr(F, "grouped_mm", None), getattr(torch, "_grouped_mm", None)) if found is not None
)
SIXTEEN = (torch.float16, torch.bfloat16)


class LikeCuda(TorchFunctionMode):
    """Compute as CUDA would under the autocast that is on, as far as memory goes.

    The model's code, checkpointing and this mode read from the CPU's autocast whether it is on. That one acts below
    this mode, on what operations call inside (a linear in multi-head attention, a product in einsum): its list of
    operations in 16 bits is CUDA's, and of those in float32 it has few that CUDA's has not. Low-precision copies of
    trained weights are kept until the mode is left, as autocast keeps them.
    """

    def __init__(self, flash: bool = True) -> None:
        super().__init__()
        self.flash = flash
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __exit__(self, *error: Any) -> Any:
        self._copies.clear()
        return super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_autocast_enabled("cpu"):
            args, kwargs = self._autocast(func, args, kwargs)
        if func is F.scaled_dot_product_attention:
            return attention(*args, flash=self.flash, **kwargs)
        if func is torch.tensor and isinstance(args[0], (list, tuple)):
            args = ([v.item() if isinstance(v, torch.Tensor) and v.numel() == 1 else v for v in args[0]], *args[1:])
        if func is F.ctc_loss:
            return ctc_loss(*args, **kwargs)
        if func in GROUPED:
            return grouped_mm(*args, **kwargs)
        if func is F.multi_head_attention_forward:  # inside, this mode is off
            with patch.object(F, "scaled_dot_product_attention", partial(attention, flash=self.flash)):
                return func(*args, **kwargs)
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        return func(*args, **kwargs)

    def _autocast(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if func in LOW or func is F.scaled_dot_product_attention:
            dtype = torch.get_autocast_dtype("cpu")
            return [self._low(a, dtype) for a in args], {k: self._low(v, dtype) for k, v in kwargs.items()}
        if func in HIGH and not (func in SET_OUTPUT and kwargs.get("dtype") is not None):
            return [_high(a) for a in args], {k: _high(v) for k, v in kwargs.items()}
        return args, kwargs

    def _low(self, value: Any, dtype: torch.dtype) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype == dtype:
            return value
        if value.is_leaf and value.requires_grad and value.dtype == torch.float32 and not value._is_view():
            if id(value) not in self._copies:
                self._copies[id(value)] = value, value.to(dtype)
            return self._copies[id(value)][1]
        return value.to(dtype)

    @staticmethod
    def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        """Keep a mask of one byte each, where the CPU keeps one as wide as its input."""
        if not (training and p):
            return input
        dropped: torch.Tensor = torch.native_dropout(input, p, training)[0]
        return dropped


def _high(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in SIXTEEN else value


class LikeCpu(TorchFunctionMode):
    """Compute as the CPU does where tensors without data cannot: their grouped product takes bfloat16 alone."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (grouped_mm if func in GROUPED else func)(*args, **kwargs or {})
