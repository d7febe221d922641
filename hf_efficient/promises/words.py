"""A tokenizer of a tiny vocabulary, with the special tokens where a configuration says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_efficient.promises.ids import special_ids
from hf_efficient.promises.sizes import VOCABULARY

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerFast

NAMES = ("pad", "bos", "eos", "unk", "cls", "sep", "mask")


def word_tokenizer(config: PreTrainedConfig) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the words w0, w1, ... whose number is their id; special tokens have the config's ids.

    A configuration without a padding token gets its end token for it, or the last free word.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    size = vocabulary(config)
    words = [f"w{number}" for number in range(size)]
    special: dict[str, str] = {}
    for name in NAMES:
        number = getattr(config.get_text_config(), f"{name}_token_id", None)
        number = getattr(config, f"{name}_token_id", None) if number is None else number
        number = number[0] if isinstance(number, list | tuple) else number
        if isinstance(number, int) and 0 <= number < size:
            words[number] = words[number] if words[number].startswith("<") else f"<{name}>"
            special[f"{name}_token"] = words[number]
    free = [number for number in ordinary_ids(config) if words[number].startswith("w")]
    words[free[0]] = "<unk>" if "unk_token" not in special else words[free[0]]
    special.setdefault("unk_token", words[free[0]])
    special.setdefault("pad_token", special.get("eos_token", words[free[-1]]))
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=special["unk_token"])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def vocabulary(config: PreTrainedConfig) -> int:
    """Return the number of tokens of a configuration, 256 where it says none."""
    from hf_efficient.promises.shrink import parts

    sizes = [getattr(one, "vocab_size", None) for one in (config.get_text_config(), config, *parts(config))]
    return next((size for size in sizes if isinstance(size, int) and size > 0), VOCABULARY)


def ordinary_ids(config: PreTrainedConfig) -> list[int]:
    """Return the ids that are no special tokens, 256 at most."""
    from hf_efficient.promises.shrink import parts

    special = special_ids(list(parts(config)))
    return [number for number in range(min(vocabulary(config), VOCABULARY)) if number not in special and number > 3]
