"""Images, from where they lie to batches.

sources/    what a source string names: folders, lists, tables, arrays, tars, torchvision's data sets
shards      a source written once as shards (`build`), by way of building/
index       what a folder of shards holds, and what to type where a folder holds none
pixels/     encoded images and arrays: one place decodes, scales and lays out
loading/    from an index to batches: which images, in which order, from the cache, the disk or the device
"""

UNLABELLED = -1  # the label of an image that has none
