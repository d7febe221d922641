"""Scripts in which the checks of imports find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

EXAMPLES = {
    "removed-name-imported": (
        [
            {"script": "from transformers import AdamW as A\nA(model.parameters(), lr=1e-5)\n"},
            {"script": "from transformers import Trainer, TFBertModel\n"},
            {"files": {"train.py": "from peft import LoraConfig, prepare_model_for_int8_training\n"}},
            {"script": "def metric():\n    from datasets import load_metric\n    return load_metric('f1')\n"},
            {"script": "import transformers\nopt = transformers.AdamW(net.parameters())\n"},
            {"script": "from trl import ORPOConfig, PPOTrainer\n"},
        ],
        [
            {"script": "from trl import PPOTrainer\n", "machine": {"packages": {"trl": "0.19.1"}}},
            {"script": "from trl import SFTTrainer, GRPOTrainer\nfrom trl.experimental.orpo import ORPOTrainer\n"},
            {"script": "from torch.optim import AdamW\nAdamW(model.parameters(), lr=1e-5)\n"},
            {"script": "try:\n    from transformers import AdamW\nexcept ImportError:\n    AdamW = None\n"},
            {"script": "from .transformers import AdamW\nfrom transformers import Trainer\n"},
        ],
    ),
}
