"""``make bench-gpu``: what one card makes of many devices' training, in one command of some minutes.

Each stage of ``stages.py`` is a child process with a time limit of its own, so that a crash, a hang or
exhausted memory loses that stage alone (``children.py``). A stage is a function from ``Settings`` to
cells, in the order of their worth (``cells.py``); what each finds, or the reason why there is nothing, is
written down at once. ``goals.py`` judges, ``tools/bench/gpu_figures.py`` puts the result into RESULTS.md.

Without CUDA the same stages run on the CPU at sizes of their own: that shows that they run, nothing else.
"""
