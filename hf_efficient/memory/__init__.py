"""What a training step takes in memory, before it runs: its bytes traced on tensors without data, on any computer."""
