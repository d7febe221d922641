"""Setups in which the checks of compile_saving find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

import json


def _loop(accelerator: str, save: str, before: str = "") -> dict[str, object]:
    text = (
        "import torch\nfrom accelerate import Accelerator\nfrom safetensors.torch import save_file\n"
        f"accelerator = Accelerator({accelerator})\nmodel = torch.nn.Linear(8, 1)\n{before}"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
        "for batch in loader:\n    accelerator.backward(model(batch).mean())\n    optimizer.step()\n"
        f"    optimizer.zero_grad()\n{save}\n"
    )
    return {"files": {"train.py": text}}


def _checkpoint(prefix: str, script: str = "") -> dict[str, object]:
    index = json.dumps({"weight_map": {f"{prefix}{name}.weight": "a.safetensors" for name in ("first", "second")}})
    return {"files": {"last/model.safetensors.index.json": index} | ({"go.py": script} if script else {})}


_ON = "dynamo_backend='inductor'"

EXAMPLES = {
    "compiled-keys-saved": (
        [
            _loop(_ON, "accelerator.save_model(model, 'out')"),
            _loop("dynamo_backend='aot_eager'", "state = accelerator.get_state_dict(model)\nsave_file(state, 'm')"),
            _loop(_ON, "plain = accelerator.unwrap_model(model)\nsave_file(plain.state_dict(), 'm.safetensors')"),
            _loop(
                "", "torch.save(accelerator.unwrap_model(model).state_dict(), 'm')", "model = torch.compile(model)\n"
            ),
            _loop(_ON, "whole = {'net': model.state_dict(), 'step': 1}\ntorch.save(whole, 'm')"),
            {
                "files": {
                    "train.py": "import torch\nmodel = torch.nn.Linear(8, 1)\nfast = torch.compile(model)\n"
                    "for batch in loader:\n    fast(batch).mean().backward()\n"
                    "torch.save({'model': fast.state_dict()}, 'model.pt')\n"
                }
            },
        ],
        [
            _loop("", "accelerator.save_model(model, 'out')"),
            _loop(_ON, "accelerator.save_state('out')"),
            _loop(_ON, "torch.save({'optimizer': optimizer.state_dict()}, 'm')"),
            _loop("", "torch.save(model.state_dict(), 'm')", "model.compile()\n"),
            _loop(_ON, "accelerator.unwrap_model(model).save_pretrained('out')"),
            _loop(
                _ON,
                "plain = accelerator.unwrap_model(model, keep_torch_compile=False)\naccelerator.save_model(plain, 'o')",
            ),
            _loop(
                _ON,
                "state = {k.removeprefix('_orig_mod.'): v for k, v in accelerator.get_state_dict(model).items()}\n"
                "save_file(state, 'm')",
            ),
            _loop("dynamo_backend=input()", "accelerator.save_model(model, 'out')"),
            {
                "files": {
                    "train.py": "import torch\nmodel = torch.nn.Linear(8, 1)\nfast = torch.compile(model)\n"
                    "for batch in loader:\n    fast(batch).mean().backward()\ntorch.save(model.state_dict(), 'm.pt')\n"
                }
            },
        ],
    ),
    "checkpoint-of-a-wrapper": (
        [
            _checkpoint("_orig_mod."),
            _checkpoint("module."),
            _checkpoint(
                "_orig_mod.", "from transformers import AutoModel\nmodel = AutoModel.from_pretrained('last')\n"
            ),
        ],
        [_checkpoint(""), _checkpoint("base_model.model.")],
    ),
}
