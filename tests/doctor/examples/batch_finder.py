"""Scripts in which the checks of batch_finder find their mistake, and relatives in which they stay silent."""

from __future__ import annotations


def _found(
    accelerator: str, body: str = "", decorator: str = "@find_executable_batch_size(starting_batch_size=24)"
) -> str:
    return (
        "import torch\nfrom accelerate import Accelerator\n"
        "from accelerate.utils import find_executable_batch_size\n"
        f"accelerator = Accelerator({accelerator})\n{decorator}\ndef work(size):\n    model = torch.nn.Linear(8, 1)\n"
        f"{body}    optimizer = torch.optim.AdamW(model.parameters())\n"
        "    loader = torch.utils.data.DataLoader(rows, batch_size=size, shuffle=True)\n"
        "    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
        "    for batch in loader:\n        with accelerator.accumulate(model):\n"
        "            accelerator.backward(model(batch).mean())\n"
        "            optimizer.step()\n            optimizer.zero_grad()\n"
        "work()\n"
    )


_NONE = "x = 1"

EXAMPLES = {
    "batch-finder-keeps-accumulation": (
        [
            {"script": _found("gradient_accumulation_steps=6"), "accelerator": {"gradient_accumulation_steps": 6}},
            {"files": {"train.py": _found("gradient_accumulation_steps=2", decorator="@find_executable_batch_size")}},
            {
                "files": {
                    "train.py": _found("gradient_accumulation_steps=4", decorator=_NONE)
                    + "find_executable_batch_size(work, starting_batch_size=32)()\n"
                }
            },
        ],
        [
            {"files": {"train.py": _found("", "    accelerator.gradient_accumulation_steps = 96 // size\n")}},
            {"files": {"train.py": _found("gradient_accumulation_steps=4", decorator=_NONE)}},
        ],
    ),
    "batch-finder-around-compilation": (
        [
            {"files": {"train.py": _found("dynamo_backend='inductor'")}},
            {"files": {"train.py": _found("", "    model = torch.compile(model)\n")}},
        ],
        [
            {"files": {"train.py": _found("")}},
            {"files": {"train.py": _found("dynamo_backend='inductor'", decorator=_NONE)}},
        ],
    ),
}
