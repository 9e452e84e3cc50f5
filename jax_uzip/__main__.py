"""The command line: `python -m jax_uzip analyze model.safetensors`, `run train.py` and `doctor`."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

import jax_uzip
from jax_uzip._src import doctor, native, run
from jax_uzip._src.analyze import Analysis, Row, SortKey, analyze_one, printable
from jax_uzip._src.files import FileError, tensors
from jax_uzip._src.options import SHORT_NAMES, dtype_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, or 1 if a file cannot be read or a test fails."""
    options = _parser().parse_args(arguments)
    if options.command == "run":
        run.start(_target(options))
    if options.command == "doctor":
        report, healthy = doctor.examine()
        print(report)
        return 0 if healthy else 1
    return _print_analysis(options)


def _target(options: argparse.Namespace) -> list[str]:
    """What to run, as Python's own command line has it."""
    if not options.module and not Path(options.script).exists():
        raise SystemExit(f"jax_uzip: can't open file {options.script!r}: No such file")
    return [*(["-m"] if options.module else []), options.script, *options.arguments]


def _print_analysis(options: argparse.Namespace) -> int:
    rows, errors = _analyze(options)
    try:
        if len(errors) < len(options.files):
            _print(Analysis(tuple(rows)), options)
    except BrokenPipeError:  # the reader, as in `| head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    for error in errors:
        print(f"jax_uzip: {printable(str(error))}", file=sys.stderr)
    return 1 if errors else 0


def _analyze(options: argparse.Namespace) -> tuple[list[Row], list[FileError]]:
    """The rows of the files that can be read to their end, and what is wrong with the others."""
    rows: list[Row] = []
    errors: list[FileError] = []
    void_as = {dtype.itemsize: dtype for dtype in options.void_as}
    total = sum(os.path.getsize(path) for path in options.files if os.path.isfile(path))
    with _Progress(total) as progress:

        def analyze_tensor(path: Path, name: str, array: NDArray[Any]) -> Row:
            if len(options.files) > 1:
                name = f"{path.name}: {name}"
            if array.dtype.type is np.void and not array.dtype.names:
                array = array.view(void_as.get(array.itemsize, array.dtype))
            return analyze_one(name, array, cast=options.cast, progress=progress.update)

        for path in options.files:
            try:
                rows += [analyze_tensor(path, name, array) for name, array in tensors(path)]
            except FileError as error:
                errors.append(error)
    return rows, errors


def _print(analysis: Analysis, options: argparse.Namespace) -> None:
    if options.json:
        text = json.dumps(analysis.to_dict(), indent=2, allow_nan=False)
    else:
        text = analysis.table(sort=options.sort, limit=options.limit)
    encoding = sys.stdout.encoding or "utf-8"  # which may not have every character of a name
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


class _Progress:
    """A progress bar on a terminal, from the second second on, if tqdm is installed."""

    def __init__(self, total: int):
        try:
            from tqdm import tqdm
        except ImportError:
            self._bar = None
        else:
            self._bar = tqdm(
                total=total, unit="B", unit_scale=True, delay=2, disable=None, leave=False
            )

    def update(self, size: int) -> None:
        if self._bar is not None:
            self._bar.update(size)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._bar is not None:
            self._bar.close()


# ---- arguments ---------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jax_uzip", description="Lossless-compressed collectives for JAX."
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    analyze = commands.add_parser(
        "analyze",
        help="say what the codec saves on the tensors of files",
        description=(
            "Says for each tensor its size, the ratio (raw bytes by encoded bytes) that the codec "
            "reaches, and Shannon's bound for codecs of exponents. Exit code 1: a file cannot be "
            "read, and only the others are shown; 2: wrong arguments."
        ),
    )
    analyze.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help=".safetensors, .npz or .npy"
    )
    analyze.add_argument(
        "--cast", type=_dtype, metavar="DTYPE", help="cast floats first, as in bfloat16 or bf16"
    )
    analyze.add_argument(
        "--void-as",
        type=_dtype,
        action="append",
        default=[],
        metavar="DTYPE",
        help=(
            "take values of .npy and .npz files that have no dtype but as many bytes for this, as in "
            "bfloat16; once for each size"
        ),
    )
    analyze.add_argument(
        "--sort",
        choices=SortKey.__args__,
        help="order of the rows: by name, or the largest first (default: as in the files)",
    )
    analyze.add_argument(
        "--limit", type=_count, metavar="N", help="show N rows, and the others as one"
    )
    analyze.add_argument(
        "--json", action="store_true", help="print JSON, all tensors in file order"
    )
    run_ = commands.add_parser(
        "run",
        help="run a script with compressed collectives, and say what was saved",
        usage="python -m jax_uzip run [-h] [-m] SCRIPT [ARGUMENT ...]",
        description=(
            "Runs an unmodified script as Python does, with jax_uzip.enable() behind its import of JAX, "
            "and says at the end, on stderr, which collectives were compressed and the bytes saved. "
            "Counting costs a call into Python for every message of a device: use JAX_UZIP=1 or "
            "jax_uzip.enable() to measure speed. The exit code is the script's."
        ),
    )
    run_.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    run_.add_argument("script", metavar="SCRIPT")
    run_.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT")
    commands.add_parser(
        "doctor",
        help="say what is installed, built and in force, test the codec and time it",
        description=(
            "Says versions, what is built, what was found, the options in force, and for everything "
            "missing what to do; tests the codec and times it. Exit code 1: the codec's test fails."
        ),
    )
    return parser


def _version() -> str:
    return (
        f"jax_uzip {jax_uzip.__version__}, wire format {native.FORMAT_VERSION}, "
        f"jax {jax.__version__}"
    )


def _dtype(text: str) -> np.dtype[Any]:
    try:
        dtype = dtype_of(text)
        native.wire_code(dtype)
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or dtype.kind == "c":
        floats = {d.name for d in native.dtypes() if d.kind != "c"}
        short = [short for short, name in SHORT_NAMES.items() if name in floats]
        raise argparse.ArgumentTypeError(
            f"{text!r} is none of {', '.join(sorted(floats))}, or for short {', '.join(short)}"
        )
    return dtype


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
