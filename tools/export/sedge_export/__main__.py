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
the channels to leave out: the whole model is written to ``folder``, the form without a quarter of the
channels of every axis to ``folder-0.25``, and so on. Each is verified like any bundle. ``show`` and
``bundle`` need no torch, which takes seconds to import.
"""

import sys
from pathlib import Path

from sedge_export.command_line.arguments import (
    bundle_parser,
    export_parser,
    personal_parser,
    show_parser,
)
from sedge_export.command_line.initial_parameters import write_parameters
from sedge_export.command_line.summary import summary
from sedge_protocol.errors import ConfigError, SedgeError
from sedge_protocol.host.console import printing
from sedge_protocol.wire.bundle import load


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns 0 for success, 2 after one line on stderr for an error."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        with printing():
            print(_run(arguments))
    except (SedgeError, OSError) as exc:
        print(
            "sedge-export:", *str(exc).split(), file=sys.stderr
        )  # on one line, whatever the message contains
        return 2
    return 0


def _run(arguments: list[str]) -> str:
    """Do what is asked; what to print of it."""
    command, words = arguments[:1], arguments[1:]
    if command == ["show"]:
        folder = Path(show_parser().parse_args(words).folder)
        return summary(load(folder)[0].manifest, folder)
    if command == ["bundle"]:
        return write_parameters(bundle_parser().parse_args(words))
    is_personal = command == ["personal"]
    parser = personal_parser() if is_personal else export_parser()
    options = parser.parse_args(words if is_personal else arguments)
    try:
        from sedge_export.command_line.commands import export_bundles, personal_model
    except ModuleNotFoundError as exc:
        raise ConfigError("sedge-export", exc.name, "pip install 'sedge-fl[export]'") from exc
    return personal_model(parser, options) if is_personal else export_bundles(parser, options)


if __name__ == "__main__":
    sys.exit(main())
