"""Parts of the training loop in `vitssl.train`.

train_state     one attempt at a run: the objects that the loop works with, how they are started, and what a checkpoint holds
passes, optim   a step's forward and backward pass; parameter groups, optimisers and schedules
evaluate        evaluation during training, at its end and later
log, loggers    what a run reports while it trains; `pictures`: PNG files of what it saw and reconstructed
attempt         what surrounds an attempt in its folder; `stopping`: requests to stop; `memory`: how the process keeps freed memory
"""
