"""Trains many devices on one host, with the same results as if each trained alone.

tasks        the requests and their results
problem      the model, its loss and its batches
choice       which trainer a run has, by rule; ``open_trainer``
autograd     one device after another: plain autograd on a flat vector (``module``, ``storage``)
vectorised   many devices at once (torch.func), in ``blocks``; what a GPU needs
fitting      how many devices a GPU's memory holds
graphs       a step of many devices as one CUDA graph
convolutions a convolution of many devices as a product of matrices
programs     one device after another in onnxruntime, a device's own programs
checks       every trainer against float64, and alone against in a group
memory       freed memory stays with the process
"""
