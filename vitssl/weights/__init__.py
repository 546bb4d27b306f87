"""Weights in and out: files of other code become run folders (`importing`), runs become what other code loads (`exporting`, `onnx`).

`layouts` holds what differs between the released files, `shapes` reads a network's sizes from its tensors, `timm_names` says what a network
is called in timm.
"""
