"""The checks: one function per mistake, over settings from whatever files they came."""
