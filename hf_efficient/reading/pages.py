"""What reading alone can find: codes and their pages, for `explain CODE`."""

from __future__ import annotations

from collections.abc import Mapping

PAGES: Mapping[str, str] = {
    "unreadable": """A file could not be read, or is none of those that the doctor knows; the other files were checked.

As an error it says what the file's own reader will stop at, with the line: broken JSON or YAML, Python that does not
parse, bytes that are no text, nesting or sizes that no configuration has. As an info it names what the file was
taken for.""",
    "duplicate-key": """A key stands twice in one mapping, and the last one counts.

json.load and yaml.safe_load keep the last value without a word. DeepSpeed's own reader (runtime/config.py of 0.19.8)
refuses such a file; transformers and accelerate, which read it first, do not.""",
    "other-encoding": """A file is not plain UTF-8.

accelerate opens its YAML, transformers its JSON and Python a script as UTF-8; a byte order mark stops
json.load as well.""",
    "windows-line-ends": """A shell script has carriage returns at its line ends.

bash takes them as part of the last word of a line: `--bf16 True` becomes `True\\r`, and a backslash
no longer continues.""",
    "setup-key": """A setup document has a key that there is not, or a value of another shape; the rest was checked.""",
    "deepspeed-file-is-yaml": """DeepSpeed's configuration stands in a YAML file.

accelerate (utils/deepspeed.py) and transformers read the file that they are given with json.load, which stops at
YAML. A script that loads the YAML itself and hands over the dict is right.""",
    "launch-option-ignored": """An option of `accelerate launch` that only counts under an engine that nothing turns on.

`--zero_stage`, `--gradient_accumulation_steps` and their like are read under --use_deepspeed (or a file that says so),
`--fsdp_...` under --use_fsdp. Without a --config_file accelerate reads its default file of that
machine, if there is one.""",
}
