"""A plan becomes plain objects and files of the Hugging Face stack."""
