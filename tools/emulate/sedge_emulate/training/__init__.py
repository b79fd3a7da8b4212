"""Trains many devices on one host, with the same results as if each device trained alone.

tasks        training requests and their results
problem      the model, its loss and its batches
choice       the rule that chooses a run's trainer; ``open_trainer``
autograd     trains one device after another: plain autograd on a flat vector (``module``, ``storage``)
vectorised   trains many devices at once (torch.func), in ``blocks``; chosen on a GPU
fitting      determines how many devices fit into a GPU's memory
graphs       runs a training step of many devices as one CUDA graph
convolutions runs a convolution of many devices as a matrix product
programs     trains one device after another in onnxruntime, with the programs that a device runs
checks       compares every trainer with float64, and a device alone with a device in a group
memory       makes the process keep freed memory
"""
