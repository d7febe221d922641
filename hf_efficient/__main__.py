"""`python -m hf_efficient` is `hf-efficient`."""

import sys

from hf_efficient.cli import main

sys.exit(main())
