"""Collectives over two hosts and a link of a known rate: jax_uzip beside jax.lax in the same run.

    make bench-collectives
    python benchmarks/collectives.py [--quick] [--sizes 64K 64M] [--rates 200mbit 1gbit] [--dtypes ...]

Needs root and iproute2: the hosts are network namespaces of this machine (two_hosts.py).

How it measures
  Each host runs one JAX process; XLA's CPU collectives go over the link through Gloo.  Every repeat
  times every contender once, in turn, each call by the slower of both hosts; reported are the median
  and the spread of the repeats.  What each call received is checked to the bit, and what it sent is
  read off the link.  The contenders are
    lax raw   `jax.lax` moving the same number of bytes as plainly as it can: integers with the bits of
              the values or, for sums, float32, as XLA's CPU collectives widen bfloat16 to that
    lax       `jax.lax` on the values, as users call it
    jax_uzip  the same function of jax_uzip
  Sizes are raw bytes of one rank's operand.
  The table that is printed is also written to benchmarks/results/, with a plot and, as CSV, the time
  of every repeat.
"""

import argparse
import csv
import datetime
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
from tqdm import tqdm
from two_hosts import bits_per_second, two_hosts, wait_for_all

COLLECTIVES = ("all_gather", "all_to_all", "ppermute", "psum", "psum_scatter")
DTYPES = ("bfloat16", "float32")
SIZES = ("64K", "256K", "1M", "4M", "16M", "64M", "256M")
RATES = ("200mbit", "1gbit", "5gbit", "10gbit")
CONTENDERS = {"raw": "lax raw", "lax": "lax", "uzip": "jax_uzip"}
UNITS = {"K": 1 << 10, "M": 1 << 20}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES)
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="of an operand: 64K, 1M, ...")
    parser.add_argument("--rates", nargs="+", default=RATES, help="of the link, as tc takes them")
    parser.add_argument("--data", choices=("gaussian", "random bits"), default="gaussian")
    parser.add_argument(
        "--seconds", type=float, default=4, help="of one contender's repeats, about"
    )
    parser.add_argument("--repeats", nargs=2, type=int, default=(5, 21), metavar=("MIN", "MAX"))
    parser.add_argument("--quick", action="store_true", help="three sizes, two rates, few repeats")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.sizes, chosen.rates = ("64K", "1M", "8M"), ("200mbit", "1gbit")
        chosen.seconds, chosen.repeats = 0.5, (3, 5)

    cases = {
        "collectives": list(chosen.collectives),
        "dtypes": list(chosen.dtypes),
        "sizes": [parse_size(size) for size in chosen.sizes],
        "rates": sorted(chosen.rates, key=bits_per_second),
        "data": chosen.data,
        "seconds": chosen.seconds,
        "repeats": list(chosen.repeats),
    }
    load = os.getloadavg()[0]
    rows, failed = run(cases)
    if failed:
        return failed
    results = paired(rows)
    report = "\n".join(
        [
            "# Collectives over two hosts",
            "",
            *environment(chosen.data, load),
            *(line for rate in cases["rates"] for line in table(rate, results)),
            *("", "## Smallest message from which jax_uzip is never slower than lax raw", ""),
            *pays_from(results, cases),
            "",
        ]
    )
    print(report)
    chosen.output.mkdir(parents=True, exist_ok=True)
    data = "" if chosen.data == "gaussian" else f"-{slug(chosen.data)}"
    stem = chosen.output / f"collectives-{datetime.date.today()}-{slug(cpu())}{data}"
    stem.with_suffix(".md").write_text(report)
    write_csv(stem.with_suffix(".csv"), rows)
    plot(stem.with_suffix(".png"), results, cases)
    print(f"written to {stem}.md, .csv and .png")
    return 0


# ---- running -----------------------------------------------------------------------------------

Row = dict[str, Any]


def run(cases: dict[str, Any]) -> tuple[list[Row], int]:
    """Rows as collectives_rank.py prints them, and an exit code."""
    script = Path(__file__).with_name("collectives_rank.py")
    command = [sys.executable, str(script), json.dumps(cases)]
    lists = (cases[key] for key in ("collectives", "dtypes", "sizes", "rates"))
    total = len(CONTENDERS)
    for of_one_kind in lists:
        total *= len(of_one_kind)
    rows: list[Row] = []

    def read(lines: Iterable[str]) -> None:
        with tqdm(total=total, leave=False, disable=None) as bar:
            for line in lines:
                if line.startswith("{"):
                    rows.append(json.loads(line))
                    bar.update()

    with tempfile.TemporaryFile("w+") as errors, two_hosts("10gbit") as hosts:
        settings = {"text": True, "stderr": errors, "env": {"JAX_PLATFORMS": "cpu"}}
        ranks = [
            host.start(command, stdout=to, **settings)
            for host, to in zip(hosts, (subprocess.PIPE, subprocess.DEVNULL), strict=True)
        ]
        reader = threading.Thread(target=read, args=(ranks[0].stdout,))
        reader.start()
        failed = wait_for_all(ranks)
        reader.join()
        if failed:
            errors.seek(0)
            print("".join(errors.readlines()[-40:]), file=sys.stderr)
        return rows, failed


# ---- tables ------------------------------------------------------------------------------------


class Result(NamedTuple):
    """All contenders of one case."""

    collective: str
    dtype: str
    nbytes: int
    rate: str
    seconds: dict[str, list[float]]
    sent: dict[str, int]

    def times_as_fast(self, base: str) -> list[float]:
        """Than another contender, repeat by repeat."""
        pairs = zip(self.seconds[base], self.seconds["uzip"], strict=True)
        return sorted(theirs / ours for theirs, ours in pairs)


def paired(rows: list[Row]) -> list[Result]:
    cases: dict[Any, Result] = {}
    for row in rows:
        key = row["collective"], row["dtype"], row["bytes"], row["rate"]
        result = cases.setdefault(key, Result(*key, {}, {}))
        result.seconds[row["contender"]] = row["seconds"]
        result.sent[row["contender"]] = row["sent"]
    return list(cases.values())


def table(rate: str, results: list[Result]) -> Iterator[str]:
    yield from ("", f"## {rate}/s, milliseconds: median (best to worst)", "")
    yield (
        "| collective | dtype | size | lax raw | lax | jax_uzip | times as fast as lax raw | as lax "
        "| MB sent: lax raw | lax | jax_uzip |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|"
    )
    for r in results:
        if r.rate == rate:
            cells = [r.collective, r.dtype, size(r.nbytes)]
            cells += [milliseconds(r.seconds[key]) for key in CONTENDERS]
            cells += [spread(r.times_as_fast(base)) for base in ("raw", "lax")]
            cells += [f"{r.sent[key] / 1e6:.2f}" for key in CONTENDERS]
            yield f"| {' | '.join(cells)} |"


def pays_from(results: list[Result], cases: dict[str, Any]) -> Iterator[str]:
    yield f"| collective | dtype | {' | '.join(f'{rate}/s' for rate in cases['rates'])} |"
    yield f"|---|---|{'---|' * len(cases['rates'])}"
    for collective in cases["collectives"]:
        for dtype in cases["dtypes"]:
            cells = []
            for rate in cases["rates"]:
                alike = [r for r in results if r[:2] == (collective, dtype) and r.rate == rate]
                cells.append(smallest_that_pays(alike))
            yield f"| {collective} | {dtype} | {' | '.join(cells)} |"


def smallest_that_pays(alike: list[Result]) -> str:
    pays = None
    for r in sorted(alike, key=lambda r: -r.nbytes):
        if statistics.median(r.times_as_fast("raw")) < 1:
            break
        pays = r.nbytes
    return "none" if pays is None else size(pays)


def milliseconds(seconds: list[float]) -> str:
    median, best, worst = statistics.median(seconds), min(seconds), max(seconds)
    digits = 2 if median < 0.1 else 0
    return f"{median * 1e3:.{digits}f} ({best * 1e3:.{digits}f} to {worst * 1e3:.{digits}f})"


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def parse_size(text: str) -> int:
    parts = re.fullmatch(r"(\d+)([KM])", text)
    if not parts:
        sys.exit(f"a size is a number and K or M, as in 64K: {text}")
    return int(parts[1]) * UNITS[parts[2]]


def size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


# ---- files -------------------------------------------------------------------------------------


def write_csv(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | {"seconds": " ".join(map(str, row["seconds"]))} for row in rows)


def plot(path: Path, results: list[Result], cases: dict[str, Any]) -> None:
    collectives, dtypes = cases["collectives"], cases["dtypes"]
    figure, axes = plt.subplots(
        len(dtypes),
        len(collectives),
        figsize=(3.2 * len(collectives) + 1, 2.8 * len(dtypes) + 0.6),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for row, dtype in zip(axes, dtypes, strict=True):
        for ax, collective in zip(row, collectives, strict=True):
            for rate in cases["rates"]:
                alike = [r for r in results if r[:2] == (collective, dtype) and r.rate == rate]
                ratios = [r.times_as_fast("raw") for r in alike]
                middle = [statistics.median(r) for r in ratios]
                errors = [
                    [m - r[0] for m, r in zip(middle, ratios, strict=True)],
                    [r[-1] - m for m, r in zip(middle, ratios, strict=True)],
                ]
                sizes = [r.nbytes for r in alike]
                ax.errorbar(sizes, middle, errors, marker="o", ms=3, lw=1, label=f"{rate}/s")
            ax.axhline(1, color="grey", lw=0.8)
            ax.set_xscale("log", base=2)
            ax.set_xticks(cases["sizes"], [size(n) for n in cases["sizes"]], rotation=60)
            ax.set_title(f"{collective}, {dtype}", fontsize=9)
    top = max(statistics.median(r.times_as_fast("raw")) for r in results)
    axes[0][0].set_ylim(0, 1.15 * top)
    axes[0][-1].legend(fontsize=8)
    figure.supylabel("times as fast as lax moving the same bytes raw", fontsize=9)
    figure.savefig(path, dpi=110)


# ---- where this ran ----------------------------------------------------------------------------


def environment(data: str, load: float) -> list[str]:
    names = ("jax_uzip", "jax", "jaxlib", "numpy")
    versions = [f"{name} {version(name)}" for name in names]
    return [
        f"- {datetime.date.today()}, {cpu()}, {os.cpu_count()} cores for both hosts, load average "
        f"{load:.1f} at the start and {os.getloadavg()[0]:.1f} at the end",
        f"- {', '.join(versions)}, Python {platform.python_version()}, Gloo over TCP",
        f"- data: {data}; by `{command_line()}`",
    ]


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "of the checkout"


def command_line() -> str:
    return " ".join(["python", "benchmarks/collectives.py", *sys.argv[1:]])


def cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.machine()


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main())
