"""sedge-export: compiles a model into a bundle folder, from the command line.

    sedge-export package.module:function --sample-shape 1,28,28 --batch-size 32 --num-classes 10 \\
        --name avgcnn --out folder [--widths 0,0.25,0.5,0.75] [--backend onnxruntime,executorch] \\
        [--loss cross_entropy] [--target class] [--metric accuracy] [--data package.module:function]
    sedge-export show folder
    sedge-export bundle package.module:function --sample-shape 1,28,28 --batch-size 32 --num-classes 10 \\
        --name own --out folder
    sedge-export personal package.module:function --weights pi-1.npz --sample-shape 1,28,28 \\
        --out model.onnx|model.pte [--int8 --data package.module:function]

The function or class is called without arguments and must return an nn.Module. ``--widths`` are shares of
channels to leave out: the whole model is written to ``folder``, the form without a quarter of the channels
of every axis to ``folder-0.25``, and so on. Each is verified like any bundle. ``show`` and ``bundle`` do
not import torch, which takes seconds.
"""

import sys
from pathlib import Path

from sedge_export.command_line.arguments import commands_parser, export_parser
from sedge_export.command_line.initial_parameters import write_parameters
from sedge_export.command_line.summary import summary
from sedge_protocol.errors import NotInstalled, StorageError
from sedge_protocol.host.command_line import exit_status, parsed
from sedge_protocol.wire.bundle import load


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns its exit status (docs/commands.md)."""
    arguments = sys.argv[1:] if argv is None else argv

    def call() -> int:
        try:
            print(_run(arguments))
        except OSError as exc:
            raise StorageError(str(exc)) from exc
        return 0

    return exit_status("sedge-export", call)


def _run(arguments: list[str]) -> str:
    """Run the command. Returns the text to print.

    If the first word is a plain name, it is a command; a model is written with a colon,
    ``module:function``.
    """
    first = arguments[0] if arguments else "-"
    is_export = not first.isidentifier()
    parser = export_parser() if is_export else commands_parser()
    options = parsed(parser, arguments)
    if first == "show":
        folder = Path(options.folder)
        return summary(load(folder)[0].manifest, folder)
    if first == "bundle":
        return write_parameters(options)
    try:
        from sedge_export.command_line.commands import export_bundles, personal_model
    except ModuleNotFoundError as exc:
        raise NotInstalled("sedge-export", exc.name or "a package", "export") from exc
    if is_export:
        return export_bundles(parser, options)
    return personal_model(options.parser, options)


if __name__ == "__main__":
    sys.exit(main())
