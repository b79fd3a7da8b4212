"""``make bench-gpu``: measures in a few minutes how fast one GPU trains many devices.

Each stage of ``stages.py`` is a child process with its own time limit, so that a crash, a hang or exhausted
memory loses only that stage (``children.py``). A stage is a function from ``Settings`` to cells, most
valuable first (``cells.py``). Each cell's result, or the reason why it is missing, is written to a file at
once. ``goals.py`` compares the result with the goals, and ``tools/bench/gpu_figures.py`` puts it into
RESULTS.md. Without CUDA the same stages run on the CPU at smaller sizes, which only shows that they work.
"""
