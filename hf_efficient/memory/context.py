"""What a process holds of a card outside PyTorch's allocator, as published: CUDA's context, kernels, NCCL's buffers.

A message of torch.OutOfMemoryError tells it: what the process has in use, less what is allocated and what is reserved
but unallocated. Its figures have two decimals, so that a difference is right to 0.02 GiB.
"""

from __future__ import annotations

from collections.abc import Mapping

Capability = tuple[int, int]

LAZY = (11, 7)
"""The first release of CUDA that loads kernels when they are first used; PyTorch 1.13 asks for that (PR 86509)."""
WORKING_GIB: Mapping[Capability, float] = {
    # 31.54 - 28.49 - 2.68: T5 in training, a public log of a card of 31.73 GiB, taken for a V100
    (7, 0): 0.37,
    # T4: 0.12 (AlphaGPU/leetgpu-challenges 52), 0.13 (Zheng-Chong/CatVTON 133), 0.15 (huggingface/trl 4237)
    (7, 5): 0.14,
    # 79.23 - 78.42 - 0.33: a transformer in training, a public log of a card of 79.25 GiB, taken for an A100
    (8, 0): 0.48,
    # A10 0.22 (zai-org/CogVLM 236), RTX 3090 0.34 (vllm-project/vllm 26863), and 0.26 in a log of LoRA
    (8, 6): 0.30,
    # L40S under Trainer 0.50 (huggingface/sentence-transformers 3214), L40 0.49 (NVlabs/Eagle 68), RTX 4090 0.51
    # (huggingface/lora-fast 1) and 0.46 (pinokiofactory/flux-webui 11)
    (8, 9): 0.50,
    # H100 NVL 0.66 (ali-vilab/VACE 56); 139.60 - 138.14 - 0.81, a public log of a card of 139.72 GiB, taken for an H200
    (9, 0): 0.65,
    # RTX 5090: 0.58 (Wan-Video/Wan2.1 465), 0.60 (TrajectoryCrafter/TrajectoryCrafter 20)
    (12, 0): 0.59,
}
"""GiB of one process in the midst of work, on one card, with CUDA 11.8 to 13; issues of these numbers on GitHub.

Kernels of cuBLAS, cuDNN, FlashAttention and Triton that were loaded by then are in it.
"""
IDLE_GIB: Mapping[Capability, float] = {(7, 5): 148 / 1024, (8, 0): 414 / 1024, (8, 9): 426 / 1024}
"""GiB of a process that did nothing yet: T4 (a log), A100 with CUDA 12.8 (awslabs/keys_values issue 92), RTX 6000 Ada
with torch 2.10 and CUDA 13 (unslothai/unsloth-zoo PR 1053)."""
EAGER_GIB: Mapping[Capability, float] = {
    (7, 0): 1343 / 1024,  # transformers' docs, model_memory_anatomy; Titan V 1008 MiB (pytorch issue 28394)
    (7, 5): 877 / 1024,  # RTX 2080 Ti, CUDA 10.1: 1035 MiB with a tensor of 158 (pytorch issue 49877)
    (8, 0): 815 / 1024,  # A100-40GB (pytorch PR 85017); 871 MiB on cards without a name (PR 76296, issue 49481)
    (8, 6): 1486 / 1024,  # RTX 3090, CUDA 11.0: 1644 MiB with that tensor (49877); 1687 MiB with 11.1 (issue 55277)
}
"""GiB of a process before CUDA 11.7, which loaded every kernel of PyTorch with the first one."""
PAIR_GIB, RING_GIB = 544 / 1024, 688 / 1024
"""GiB of NCCL's buffers after a first all-reduce on A100 with NVLink, for two cards and for three or four.

Published: NVIDIA/nccl issue 964. They grow with the channels, of which NVLink has more than PCIe, and beyond two
computers no more with the ranks (issue 986). Eight H100 hold 1.06 GB outside PyTorch, their contexts among it; an
all-to-all, which no engine here uses, takes 3 GB more (issue 1685).
"""
PCIE_GIB = 0.1
"""GiB of NCCL's buffers where no NVLink is: eight RTX 3080 hold 0.36 GiB outside PyTorch (huggingface/trl issue 3436),
four A10G 0.35 (meta-llama/llama-cookbook PR 898), their contexts among it."""

DRIVER_GIB = 0.65
"""What nvidia-smi counts besides with some drivers: totals of one A100-80GB differ by 669 MiB.

The 37 runs of fms-acceleration on one GPU show nothing besides on one machine, and 1.15 GiB on another.
"""


def context_gib(capability: Capability, *, cuda: tuple[int, int] = (13, 0)) -> float:
    """Return the GiB that CUDA's context and loaded kernels take on a card of this compute capability, in training.

    `cuda`: the release that PyTorch was built with. A card without a figure, such as B200 and AMD's, gets the largest.
    Source: WORKING_GIB, and EAGER_GIB for releases before 11.7.
    """
    figures = WORKING_GIB if cuda >= LAZY else EAGER_GIB
    return figures.get(capability, max(figures.values()))


def nccl_gib(ranks: int, *, nvlink: bool = True) -> float:
    """Return the GiB of NCCL's buffers on each of `ranks` cards, which one communicator joins.

    PyTorch's allocator knows nothing of them. `nvlink`: the link is faster than PCIe, and NCCL opens more channels.
    Source: PAIR_GIB, RING_GIB and PCIE_GIB.
    """
    if ranks < 2:
        return 0.0
    if not nvlink:
        return PCIE_GIB
    return PAIR_GIB if ranks == 2 else RING_GIB


def workspace_mib(capability: Capability) -> float:
    """Return the MiB of one cuBLAS workspace, which PyTorch's allocator holds for each thread that multiplies.

    Forward and backward are two threads. cuBLASLt takes the same one (TORCH_CUBLASLT_UNIFIED_WORKSPACE, on by default).
    Source: parseChosenWorkspaceSize in aten/src/ATen/cuda/CublasHandlePool.cpp: 32 MiB on Hopper and Blackwell,
    :4096:2:16:8 elsewhere, 8.125 MiB.
    """
    return 32.0 if capability[0] in (9, 10, 12) else (4096 * 2 + 16 * 8) / 1024
