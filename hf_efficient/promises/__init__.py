"""What a trick promises about the training, held against a few updates with it and without it."""
