"""The command line: `python -m jax_uzip analyze model.safetensors`."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

import jax_uzip
from jax_uzip._src import native
from jax_uzip._src.analyze import Analysis, Row, SortKey, analyze_one
from jax_uzip._src.files import FileError, tensors


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, or 1 if a file cannot be read."""
    options = _parser().parse_args(arguments)
    try:
        analysis = Analysis(tuple(_analyze(options.files, options.cast)))
    except FileError as error:
        print(f"jax_uzip: {error}", file=sys.stderr)
        return 1
    try:
        if options.json:
            print(json.dumps(analysis.to_dict(), indent=2, allow_nan=False))
        else:
            print(analysis.table(sort=options.sort, limit=options.limit))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, as in `| head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _analyze(files: Sequence[Path], cast: np.dtype[Any] | None) -> list[Row]:
    rows = []
    total = sum(path.stat().st_size for path in files if path.is_file())
    with _Progress(total) as progress:
        for path in files:
            for name, array in tensors(path):
                full_name = f"{path.name}: {name}" if len(files) > 1 else name
                rows.append(analyze_one(full_name, array, cast=cast, progress=progress.update))
    return rows


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
            "read; 2: wrong arguments."
        ),
    )
    analyze.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help=".safetensors, .npz or .npy"
    )
    analyze.add_argument(
        "--cast", type=_dtype, metavar="DTYPE", help="cast floats first, as in bfloat16"
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
    return parser


def _version() -> str:
    return (
        f"jax_uzip {jax_uzip.__version__}, wire format {native.FORMAT_VERSION}, "
        f"jax {jax.__version__}"
    )


def _dtype(text: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(getattr(ml_dtypes, text, text))
        native.wire_code(dtype)
    except (TypeError, ValueError):
        known = ", ".join(sorted(d.name for d in native.dtypes() if d.kind != "c"))
        raise argparse.ArgumentTypeError(f"{text!r} is none of {known}") from None
    if dtype.kind == "c":
        raise argparse.ArgumentTypeError("floats are not cast to complex numbers")
    return dtype


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
