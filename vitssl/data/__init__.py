"""Images, from where they are stored to batches.

sources/    what a source string can name: folders, lists, tables, arrays, tars, torchvision's data sets
shards      a source written once as shards (`build`), with the help of building/
index       the contents of a folder of shards, and what to type for a folder without any
pixels/     encoded images and arrays: the one place that decodes, scales and lays them out
loading/    from an index to batches: which images, in which order, from the cache, the disk or the device
"""

UNLABELLED = -1  # the label that marks an image without one
