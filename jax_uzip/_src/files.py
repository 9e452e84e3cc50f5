"""Reads the tensors of .safetensors, .npz and .npy files, one after another and without copies."""

import json
import math
import reprlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

MAX_HEADER_BYTES = 100_000_000
"""What the safetensors library allows."""

MAX_DIMENSIONS = 64
MAX_SIZE = 2**63 - 1
"""What NumPy allows; products of numbers without a limit would take minutes."""

# The safetensors library cannot give NumPy arrays of bfloat16 and the 8-bit floats.
_SAFETENSORS_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F64": np.float64,
    "C64": np.complex64,
}


class FileError(Exception):
    """A file cannot be read; the message says which and why."""


def tensors(path: str | Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yields names and arrays.

    Arrays of .safetensors and .npy files are memory-mapped, those of .npz are read one at a time.
    Values of a dtype that NumPy cannot hold (those below 8 bits) come as their bytes.

    Raises:
      FileError: there is no such file, or it is of another format, or malformed.
    """
    path = Path(path)
    readers = {".safetensors": _safetensors, ".npz": _npz, ".npy": _npy}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise FileError(f"{path}: unknown format, expected a name ending in {', '.join(readers)}")
    try:
        if path.is_dir():
            raise FileError(f"{path}: is a directory")
        yield from reader(path)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except _MalformedError as error:
        raise FileError(f"{path}: malformed: {error}") from error


class _MalformedError(Exception):
    pass


# What is quoted from a file may have any length.
_quote = reprlib.Repr(maxstring=200, maxlist=8, maxdict=8, maxlevel=3).repr


# ---- .safetensors ------------------------------------------------------------------------------


def _safetensors(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    size = path.stat().st_size
    if size < 8:
        raise _MalformedError(f"{size} bytes are too few for a safetensors header")
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > min(size - 8, MAX_HEADER_BYTES):
            raise _MalformedError(
                f"the header is said to have {header_bytes} bytes, the file has {size} in all"
            )
        header = _parse_header(file.read(header_bytes))
    bytes_of_file = np.memmap(path, np.uint8, "r")
    data = bytes_of_file[8 + header_bytes :].view(np.ndarray)
    for name, entry in header.items():
        if name != "__metadata__":
            yield name, _array(name, entry, data)


def _parse_header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise _MalformedError(f"the header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise _MalformedError("the header is not a JSON object")
    return header


def _array(name: str, entry: Any, data: NDArray[np.uint8]) -> NDArray[Any]:
    """The array of one entry of the header, all of which is checked."""
    try:
        dtype_name, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise _MalformedError(
            f"tensor {_quote(name)} must have a dtype, a shape and two data_offsets"
        ) from None
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise _MalformedError(f"tensor {_quote(name)} has shape {_quote(shape)}")
    if not _are_sizes([begin, end]) or not begin <= end <= data.size:
        raise _MalformedError(
            f"tensor {_quote(name)} has data_offsets {_quote([begin, end])} in {data.size} bytes "
            "of data"
        )
    raw = data[begin:end]
    dtype = _SAFETENSORS_DTYPES.get(dtype_name) if isinstance(dtype_name, str) else None
    if dtype is None:
        return raw
    if math.prod(shape) * np.dtype(dtype).itemsize != end - begin:
        raise _MalformedError(
            f"tensor {_quote(name)} is {dtype_name} of shape {_quote(shape)} and has "
            f"{end - begin} bytes"
        )
    try:
        return raw.view(dtype).reshape(shape)
    except (ValueError, OverflowError) as error:  # a product of dimensions over NumPy's
        raise _MalformedError(
            f"tensor {_quote(name)} has shape {_quote(shape)} ({error})"
        ) from error


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v <= MAX_SIZE for v in values)


# ---- .npz and .npy -----------------------------------------------------------------------------

# Of the messages of NumPy, zipfile and mmap those that say what nobody can do or tell, and what they mean.
_MEANINGS = {
    "max_header_size": "its header is longer than any of an array",
    "pickle": "it holds Python objects, which are not read",
    "Python objects": "it holds Python objects, which are not read",
    "mmap length": "it ends before its last value",
    "not a zip file": "it has no zip directory at its end",
    "valid dtype descriptor": "NumPy cannot load its dtype, as that of float8_e5m2 arrays",
}


def _npz(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    _check_magic(path, "a .npz archive", b"PK\3\4", b"PK\5\6")
    with _load(lambda: np.load(path)) as archive:
        members = archive.zip.namelist()
        for name in archive.files:
            array = _load(lambda name=name: archive[name], f"array {_quote(name)}: ")
            if isinstance(array, np.ndarray):
                yield name, array
            elif f"{name}.npy" in members:  # else a file of another kind, as its bytes
                raise _MalformedError(f"array {_quote(name)}: not a .npy file")


def _npy(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    _check_magic(path, "a .npy file", b"\x93NUMPY")
    yield path.stem, _load(lambda: np.load(path, mmap_mode="r"))


def _check_magic(path: Path, kind: str, *magics: bytes) -> None:
    """np.load goes by the first bytes, and takes what it does not know for pickled objects."""
    with path.open("rb") as file:
        if not file.read(len(magics[0])).startswith(magics):
            raise _MalformedError(f"not {kind}")


def _load(read: Callable[[], Any], where: str = "") -> Any:
    try:
        return read()
    except OSError:
        raise
    except Exception as error:  # np.load lets through whatever zipfile, zlib and ast raise
        text = str(error) or type(error).__name__
        text = next((meaning for said, meaning in _MEANINGS.items() if said in text), text)
        raise _MalformedError(where + text) from error
