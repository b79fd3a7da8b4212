"""``make bench-gpu``: how fast one card trains many devices, in one command of a few minutes.

Each stage of ``stages.py`` is a child process with its own time limit, so that a crash, a hang or exhausted
memory loses only that stage (``children.py``). A stage is a function from ``Settings`` to cells, most
valuable first (``cells.py``); each cell's result, or the reason for its absence, is written down at once.
``goals.py`` judges the result, and ``tools/bench/gpu_figures.py`` puts it into RESULTS.md.

Without CUDA the same stages run on the CPU at smaller sizes, which only shows that they run.
"""
