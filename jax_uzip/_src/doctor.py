"""`python -m jax_uzip doctor`: what is installed, built and in force, a test of the codec, and its speed."""

import dataclasses
import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import jax
import ml_dtypes
import numpy as np

import jax_uzip
from jax_uzip._src import codec, drop_in, native, options
from jax_uzip._src.collectives.primitive import collectives, public_name

TIMED_BYTES = 64 << 20
REPEATS, SECONDS = 7, 1.0
"""A speed is measured as often, or as often as there is time for, but three times at least."""


@dataclasses.dataclass
class _Report:
    """Lines under headings, and what is to be done."""

    lines: list[str] = dataclasses.field(default_factory=list)
    to_do: list[str] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)

    def heading(self, text: str) -> None:
        self.lines += ["", text]

    def fact(self, name: str, value: object) -> None:
        self.lines.append(f"  {name:<16} {value}")

    def __str__(self) -> str:
        todo = self.to_do or ["nothing is missing"]
        end = ["", "to do", *(f"  - {line}" for line in [*self.failures, *todo])]
        return "\n".join([*self.lines[1:], *end])


def examine() -> tuple[str, bool]:
    """Returns the report, and whether the codec works and the environment can be read."""
    report = _Report()
    for part in (_versions, _built, _found, _in_force, _test, _speed):
        part(report)
    return str(report), not report.failures


# ---- what is there -----------------------------------------------------------------------------


def _versions(report: _Report) -> None:
    report.heading("versions")
    report.fact("jax_uzip", f"{jax_uzip.__version__}, wire format {native.FORMAT_VERSION}")
    report.fact("jax, jaxlib", f"{jax.__version__}, {importlib.metadata.version('jaxlib')}")
    report.fact("python", f"{platform.python_version()}, numpy {np.__version__}")
    report.fact("machine", f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs")


def _built(report: _Report) -> None:
    report.heading("built")
    report.fact("CPU", f"yes, instruction set {native.isa()}")
    if "cuda" not in native.PLATFORMS:
        report.fact("CUDA", "no")
        report.to_do.append(
            "CUDA: not part of this version; collectives on GPUs go to jax.lax as before"
        )
    report.fact("collectives", ", ".join(sorted({public_name(p) for p in collectives()})))
    report.fact("transports", ", ".join(options.TRANSPORTS))


def _found(report: _Report) -> None:
    report.heading("found")
    try:
        devices = jax.local_devices()
    except RuntimeError as error:
        report.fact("devices", f"none: {str(error).splitlines()[0]}")
        report.to_do.append(
            "devices: JAX starts on no platform; unset JAX_PLATFORMS or set it to cpu"
        )
        devices = []
    kinds = sorted({(device.platform, device.device_kind) for device in devices})
    for name, kind in kinds:
        count = sum((device.platform, device.device_kind) == (name, kind) for device in devices)
        codec_too = "" if name in native.PLATFORMS else ", which the codec does not run on"
        report.fact("devices", f"{count} of {name} ({kind}){codec_too}")
    if len(devices) == 1:
        report.to_do.append(
            "devices: one has nobody to send to; to try on 8 virtual ones, set "
            "XLA_FLAGS=--xla_force_host_platform_device_count=8"
        )
    for name, packages, remedy in (
        ("NCCL", ["nvidia-nccl-cu13", "nvidia-nccl-cu12"], "on a machine with NVIDIA GPUs, "),
        (
            "CUDA plugin",
            ["jax-cuda13-plugin", "jax-cuda12-plugin"],
            "on a machine with NVIDIA GPUs, ",
        ),
        ("tqdm", ["tqdm"], "for progress bars of analyze, "),
    ):
        found = [f"{package} {version}" for package, version in _installed(packages)]
        report.fact(name, ", ".join(found) or "no package found")
        if not found:
            package = "tqdm" if name == "tqdm" else "'jax_uzip[cuda13]' or 'jax_uzip[cuda12]'"
            report.to_do.append(f"{name}: {remedy}pip install {package}")
    report.fact("XLA features", ", ".join(_features()))


def _installed(packages: list[str]) -> Iterator[tuple[str, str]]:
    for package in packages:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue


def _features() -> Iterator[str]:
    """What JAX offers that jax_uzip builds on, now or later."""
    yield "user contexts" if hasattr(jax, "make_user_context") else "no user contexts"
    hook = hasattr(__import__("jax.extend.xla").extend.xla, "register_hlo_module_transformation")
    yield "HLO transformations" if hook else "no HLO transformations"
    yield "Shardy" if jax.config.jax_use_shardy_partitioner else "GSPMD"
    yield f"CPU collectives by {jax.config.jax_cpu_collectives_implementation or 'XLA alone'}"


def _in_force(report: _Report) -> None:
    report.heading("in force")
    flag = drop_in.current()
    source = options.FLAG if options.FLAG in os.environ else "default"
    report.fact("drop-in flag", f"{'on' if flag else 'off':<24} {source}")
    try:
        chosen = options.default()
    except ValueError as error:
        report.fact("options", error)
        report.failures.append(f"options: mend the {error}")
        return
    for name, source in options.sources(os.environ).items():
        value = getattr(chosen, name)
        value = "all that the codec knows" if name == "dtypes" and value is None else value
        value = "by dtype and size" if name == "tiers" and value is None else value
        report.fact(name, f"{value!s:<24} {source}")
    for variable in options.unknown_variables(os.environ):
        report.to_do.append(f"{variable}: is no option; README lists them")
    if not chosen.enabled:
        report.to_do.append("JAX_UZIP_ENABLED: nothing is compressed until it is unset")


# ---- whether it works --------------------------------------------------------------------------


def _test(report: _Report) -> None:
    report.heading("self-test")
    tested = 0
    for dtype in native.dtypes():
        for kind, x in _inputs(dtype):
            if not _comes_back(
                x, native.encode_host, lambda p, x: native.decode_host(p, x.size, x.dtype)
            ):
                report.failures.append(f"self-test: {dtype.name}, {kind}: other bits came back")
            tested += 1
    report.fact("on the host", f"{tested} arrays of {len(native.dtypes())} dtypes")
    if not _runs_here():
        report.fact("under JAX", "not tested: no device of a platform that the codec runs on")
        return
    dtype = np.dtype(ml_dtypes.bfloat16)
    for kind, x in _inputs(dtype):
        if not _comes_back(
            x, lambda x: jax_uzip.encode(jax.numpy.asarray(x)), lambda e, _: jax_uzip.decode(e)
        ):
            report.failures.append(
                f"self-test: under JAX, {dtype.name}, {kind}: other bits came back"
            )
    report.fact("under JAX", f"{dtype.name} on {jax.devices()[0]}")
    if report.failures:
        report.failures.append("self-test: do not use this build; report it with the lines above")


def _inputs(dtype: np.dtype) -> Iterator[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    n = 20_000
    yield "random bits", rng.integers(0, 256, n * dtype.itemsize, np.uint8).view(dtype)
    yield "zeros", np.zeros(n, dtype)
    yield "empty", np.zeros(0, dtype)
    with np.errstate(all="ignore"):
        part = rng.standard_normal(n, np.float32)
        yield "Gaussian", part.astype(dtype)


def _comes_back(x: np.ndarray, encode: Callable, decode: Callable) -> bool:
    try:
        back = np.asarray(decode(encode(x), x))
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        print(f"jax_uzip: {error}", file=sys.stderr)
        return False
    return back.dtype == x.dtype and back.tobytes() == x.tobytes()


def _runs_here() -> bool:
    try:
        return jax.default_backend() in native.PLATFORMS
    except RuntimeError:
        return False


def _speed(report: _Report) -> None:
    if not _runs_here():
        return
    report.heading(f"speed of {TIMED_BYTES >> 20} MiB Gaussian bfloat16, of raw bytes")
    n = TIMED_BYTES // 2
    x = jax.random.normal(jax.random.key(0), (1, n), jax.numpy.bfloat16)
    encode = jax.jit(codec.encode_rows)
    payload, nbytes = encode(x)
    payload = payload[:, : int(nbytes[0])]
    decode = jax.jit(lambda payload: codec.decode_rows(payload, n, x.dtype))
    report.fact("ratio", f"{TIMED_BYTES / int(nbytes[0]):.3f}")
    report.fact("encode", _time(encode, x))
    report.fact("decode", _time(decode, payload))


def _time(function: Callable, argument: jax.Array) -> str:
    """The median, the slowest and the fastest."""
    jax.block_until_ready(function(argument))
    rates = []
    start = time.perf_counter()
    while len(rates) < 3 or (len(rates) < REPEATS and time.perf_counter() - start < SECONDS):
        begin = time.perf_counter()
        jax.block_until_ready(function(argument))
        rates.append(TIMED_BYTES / (time.perf_counter() - begin) / 1e9)
    middle, spread = statistics.median(rates), f"{min(rates):.2f} to {max(rates):.2f}"
    return f"{middle:.2f} GB/s ({spread} in {len(rates)} repeats)"
