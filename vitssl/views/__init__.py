"""Views of images, computed on the device: what a Run's objectives see of a batch in training, and what evaluation sees."""

from vitssl.views.pipeline import EvalView, TrainViews

__all__ = ["EvalView", "TrainViews"]
