"""Checkpoints: files of tensors, what the checkpoint of a run holds, how it is written, and how another run starts from it."""
