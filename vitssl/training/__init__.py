"""What the loop of `vitssl.train` is made of.

train_state     one attempt at a run: all that the loop works with, how it starts, and what a checkpoint holds
passes, optim   a step's two passes; parameter groups and schedules
evaluate        evaluators during training, at its end and later
log, loggers    what a run says while it trains; `pictures`: what it saw
attempt         what surrounds an attempt in its folder; `stopping`: requests to end it; `memory`: how its process keeps memory
"""
