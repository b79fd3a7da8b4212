"""Training of many devices on one host, with the numbers of each device training alone.

    tasks        what is asked for and what comes back
    problem      the model, its loss and its batches
    sequential   one device after another: explicit layers (``chain``) or autograd (``module``)
    mixture      two models of one device side by side, on an ``engine`` of those
    stacked      many devices at once, models of linear layers
    vectorised   many devices at once, any model (torch.func), on any torch device
    products     matrix products by the faster library
    programs     one device after another in onnxruntime, a device's own programs
    checks       every backend against plain eager torch, and alone against in company
    repeat       the same bits on every run of a GPU
    choice       the fastest correct one; ``open_trainer``

Measured on two cores of a Zen 4 (AVX-512, bf16) with oneDNN 3.12. Four things decide there:
memory that is given back to the kernel and faulted in again after every layer (``memory``) costs as much
as all the arithmetic of a small convolution; layers must be in the layout that their kernels want, which
``chain`` stores parameters in; torch's own products of float32 matrices use half of such a processor
(``products``); and a 5x5 convolution takes 2.5 times fewer products by a minimal filtering algorithm
(``winograd``) than any direct one, though what it saves in products it nearly spends on moving numbers.
"""
