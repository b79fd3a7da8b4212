"""Writes each device's images: Fashion-MNIST, with the classes divided between the devices.

python make_data.py device-1/train.npz device-2/train.npz
"""

import sys

import numpy as np

from sedge_emulate.data.datasets import fashion_mnist

dataset = fashion_mnist()
halves = np.array_split(np.arange(dataset.num_classes), len(sys.argv) - 1)
for path, classes in zip(sys.argv[1:], halves, strict=True):
    rows = np.flatnonzero(np.isin(dataset.targets, classes))[:2000]
    np.savez(path, x=dataset.inputs[rows], y=dataset.targets[rows])
