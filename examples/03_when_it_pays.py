"""03: when it pays: link rate by message size by dtype, from the codec's speed on this machine.

What it shows
  Compression trades bytes on the link for time in the codec.  Below a certain rate of the link that is
  a gain; which rate depends on the dtype, the size of the message and the machine.

How it works
  1. Gaussian values of each dtype and size go through `jax_uzip.encode` and `decode`, compiled and
     timed in turn: medians of a few repeats.
  2. Bytes sent are those that `jax_uzip.explain` reports for an all_gather of these very values over
     two virtual devices.
  3. An all_gather over HOSTS hosts then takes, by the link's rate and its delay for one small message,

       raw          (HOSTS - 1) * bytes / rate + delay
       compressed   encode + (HOSTS - 1) * sent / rate + 2 delays + HOSTS * decode

     as hosts first agree on a size, and decode what they receive, their own part too.
  A model, in which nothing overlaps: benchmarks/collectives.py measures over a real link.

Run
  python examples/03_when_it_pays.py [--sizes 64K 16M] [--dtypes bfloat16] [--rates 1 10] [--hosts 2]

Expected output
  all_gather over 2 hosts, 100 us for a small message, jax 0.12.0.1: times as fast as raw

  dtype       size     encode     decode    sent  0.2 Gbit/s    1 Gbit/s  ...    gains up to
  bfloat16     64K  0.67 GB/s  0.84 GB/s   68.9%        1.20        0.77  ...  0.46 Gbit/s
  bfloat16      1M  2.02 GB/s  3.14 GB/s   68.9%        1.39        1.18  ...     2 Gbit/s
  ...
  float32      64M  1.86 GB/s  2.40 GB/s   84.1%        1.14        0.99  ...  0.92 Gbit/s

  by the rate of the link: build/03_when_it_pays.png

  Figures are those of the machine: times as fast as raw, and the rate up to which compressing gains.

Next
  `JAX_UZIP_MIN_BYTES` and `JAX_UZIP_DTYPES` keep what does not pay on your link out of it.
"""

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import matplotlib as mpl
import numpy as np
from tqdm import tqdm

import jax_uzip

SIZES = ("64K", "1M", "16M", "64M")
DTYPES = ("bfloat16", "float32")
RATES = (0.2, 1, 5, 10, 25, 100)
DELAY = 100e-6
REPEATS = 5
UNITS = {"K": 1 << 10, "M": 1 << 20}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes", nargs="+", default=SIZES, help="of one host's part: 64K, 1M, ..."
    )
    parser.add_argument("--dtypes", nargs="+", default=DTYPES)
    parser.add_argument("--rates", nargs="+", type=float, default=RATES, help="in Gbit/s")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--delay", type=float, default=DELAY, help="of a small message, in seconds")
    parser.add_argument("--plot", type=Path, default=Path("build/03_when_it_pays.png"))
    chosen = parser.parse_args()

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    cases = [(dtype, size) for dtype in chosen.dtypes for size in chosen.sizes]
    codecs = [
        measure(jax.numpy.dtype(dtype), parse_size(size))
        for dtype, size in tqdm(cases, delay=1, leave=False, disable=None)
    ]
    network = partial(Network, hosts=chosen.hosts, delay=chosen.delay)

    print(
        f"all_gather over {chosen.hosts} hosts, {chosen.delay * 1e6:.0f} us for a small message, "
        f"jax {jax.__version__}: times as fast as raw\n"
    )
    rates = "".join(f"{f'{rate:g} Gbit/s':>12}" for rate in chosen.rates)
    print(
        f"{'dtype':9}{'size':>7}{'encode':>11}{'decode':>11}{'sent':>8}{rates}{'gains up to':>15}"
    )
    for (_, size), codec in zip(cases, codecs, strict=True):
        speeds = "".join(f"{gigabytes(codec, t):>11}" for t in (codec.encode, codec.decode))
        gains = "".join(f"{network(rate).gain(codec):12.2f}" for rate in chosen.rates)
        limit = network(1).pays_up_to(codec)
        print(
            f"{codec.dtype:9}{size:>7}{speeds}{codec.sent / codec.nbytes:8.1%}{gains}"
            f"{f'{limit:.2g} Gbit/s' if limit else 'none':>15}"
        )
    plot(codecs, network, chosen.plot)
    print(f"\nby the rate of the link: {chosen.plot}")
    return 0


# ---- measured ----------------------------------------------------------------------------------


class Codec(NamedTuple):
    """Of one message: bytes, and seconds."""

    dtype: str
    nbytes: int
    sent: float
    encode: float
    decode: float


def measure(dtype: np.dtype, nbytes: int) -> Codec:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(nbytes // dtype.itemsize, np.float32) * np.float32(0.02)
    x = jax.numpy.asarray(values.astype(dtype))
    encode, decode = jax.jit(jax_uzip.encode), jax.jit(jax_uzip.decode)
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS + 1):  # the first one compiles
        encoded, encoding = timed(encode, x)
        _, decoding = timed(decode, encoded)
        seconds[0].append(encoding)
        seconds[1].append(decoding)
    medians = (statistics.median(each[1:]) for each in seconds)
    return Codec(dtype.name, nbytes, bytes_sent(x), *medians)


def timed(function: Callable[[Any], Any], x: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = jax.block_until_ready(function(x))
    return result, time.perf_counter() - start


def bytes_sent(x: jax.Array) -> float:
    """By a device that gathers parts like `x`, whatever the size."""
    mesh = jax.make_mesh((2,), ("hosts",), axis_types=(jax.sharding.AxisType.Auto,))

    @partial(jax.shard_map, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False)
    def gather(part):
        return jax.lax.all_gather(part, "hosts", tiled=True)

    with jax_uzip.enabled(jax_uzip.Options(min_bytes=0)):
        return jax_uzip.explain(gather, x).bytes_after


# ---- modelled ----------------------------------------------------------------------------------


class Network(NamedTuple):
    rate: float  # in Gbit/s
    hosts: int
    delay: float  # in seconds, of one small message

    def gain(self, codec: Codec) -> float:
        """How many times as fast a message goes compressed."""
        raw = self.seconds(codec.nbytes) + self.delay
        return raw / (self.seconds(codec.sent) + self.delay + self.extra(codec))

    def pays_up_to(self, codec: Codec) -> float | None:
        """The rate at which both take the same time, whatever this one's is; none if none does."""
        saved = codec.nbytes - codec.sent
        if saved <= 0:
            return None
        return (self.hosts - 1) * saved * 8 / 1e9 / self.extra(codec)

    def seconds(self, nbytes: float) -> float:
        return (self.hosts - 1) * nbytes * 8 / (self.rate * 1e9)

    def extra(self, codec: Codec) -> float:
        """Seconds that only a compressed message takes."""
        return codec.encode + self.hosts * codec.decode + self.delay


# ---- shown -------------------------------------------------------------------------------------


def gigabytes(codec: Codec, seconds: float) -> str:
    return f"{codec.nbytes / 1e9 / seconds:.2f} GB/s"


def parse_size(text: str) -> int:
    parts = re.fullmatch(r"(\d+)([KM])", text)
    if not parts:
        sys.exit(f"a size is a number and K or M, as in 64K: {text}")
    return int(parts[1]) * UNITS[parts[2]]


def plot(codecs: list[Codec], network: Callable[[float], Network], path: Path) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    dtypes = list(dict.fromkeys(codec.dtype for codec in codecs))
    size = (4.5 * len(dtypes), 3.6)
    figure, axes = plt.subplots(
        1, len(dtypes), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    rates = np.geomspace(0.1, 100, 100)
    for ax, dtype in zip(axes[0], dtypes, strict=True):
        for codec in codecs:
            if codec.dtype == dtype:
                gains = [network(rate).gain(codec) for rate in rates]
                ax.plot(rates, gains, label=f"{codec.nbytes / (1 << 20):g} MiB")
        ax.axhline(1, color="grey", lw=0.8)
        ax.set(xscale="log", xlabel="link, Gbit/s", title=dtype)
    axes[0][0].set_ylabel("times as fast as raw")
    axes[0][-1].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
