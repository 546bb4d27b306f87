"""Images to views, on the device: what a Run's objectives see of a batch, and what its evaluation does."""

from vitssl.views.pipeline import EvalView, TrainViews

__all__ = ["EvalView", "TrainViews"]
