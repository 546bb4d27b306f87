"""Checkpoints: files of tensors, what a run's holds, how it is written, and how another run starts from it."""
