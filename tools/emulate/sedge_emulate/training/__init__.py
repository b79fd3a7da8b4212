"""Trains many devices on one host, with the same results as if each trained alone.

tasks        training requests and their results
problem      the model, its loss and its batches
choice       the rule that chooses a run's trainer; ``open_trainer``
autograd     one device after another: plain autograd on a flat vector (``module``, ``storage``)
vectorised   many devices at once (torch.func), in ``blocks``; the choice for a GPU
fitting      how many devices fit into a GPU's memory
graphs       a training step of many devices as one CUDA graph
convolutions a convolution of many devices as a matrix product
programs     one device after another in onnxruntime, with the programs that a device runs
checks       compares every trainer with float64, and a device alone with a device in a group
memory       makes the process keep freed memory
"""
