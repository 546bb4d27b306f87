"""Conversion of weights: files of other code become run folders (`importing`), runs become files for other code (`exporting`, `onnx`).

`layouts` describes the differences between released files, `shapes` reads a network's sizes from its tensors, `released` gets weights from
timm's hub, and `timm_names` knows what a network and its tensors are called in timm.
"""
