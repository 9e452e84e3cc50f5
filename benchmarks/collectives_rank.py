"""What benchmarks/collectives.py runs on each of two hosts: times every contender, checks every bit.

Takes the cases as JSON from its argument; rank 0 prints one line of JSON for each measured row.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import two_hosts
from jax.experimental import multihost_utils

import jax_uzip

RANKS = 2
SIGMA = 0.02
BURST_SECONDS = 0.05  # a sample lasts at least so long, so that the link's bursts do not count


def main(cases: dict[str, Any]) -> None:
    rank = int(os.environ["RANK"])
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(os.environ["COORDINATOR"], RANKS, rank)
    for name in cases["collectives"]:
        for dtype in cases["dtypes"]:
            for nbytes in cases["sizes"]:
                for row in measure(name, jnp.dtype(dtype), nbytes, cases):
                    if rank == 0:
                        print(json.dumps(row), flush=True)


# ---- contenders --------------------------------------------------------------------------------


class Contender(NamedTuple):
    """A compiled program, what it is given, and what every rank must receive."""

    program: Callable[[jax.Array], jax.Array]
    given: jax.Array
    expected: np.ndarray


def collective(module: Any, name: str) -> Callable[[jax.Array], jax.Array]:
    arguments = {
        "all_gather": {"tiled": True},
        "all_to_all": {"split_axis": 0, "concat_axis": 0, "tiled": True},
        "ppermute": {"perm": [(0, 1), (1, 0)]},
        "psum": {},
        "psum_scatter": {"tiled": True},
    }[name]
    return partial(getattr(module, name), axis_name="hosts", **arguments)


def expected(name: str, ours: np.ndarray, others: np.ndarray, rank: int) -> np.ndarray:
    """What this rank receives if both send `ours` and `others`."""
    by_rank = [ours, others] if rank == 0 else [others, ours]
    part = slice(rank * ours.size // RANKS, (rank + 1) * ours.size // RANKS)
    match name:
        case "all_gather":
            return np.concatenate(by_rank)
        case "all_to_all":
            return np.concatenate([x[part] for x in by_rank])
        case "ppermute":
            return others
    total = (by_rank[0].astype(np.float32) + by_rank[1].astype(np.float32)).astype(ours.dtype)
    return total if name == "psum" else total[part]


def contenders(name: str, dtype: np.dtype, nbytes: int, data: str) -> dict[str, Contender]:
    """`raw` moves as many bytes as there are, by `lax`: as integers, or sums of float32."""
    mesh = jax.make_mesh((RANKS,), ("hosts",), axis_types=(jax.sharding.AxisType.Auto,))
    rank = jax.process_index()

    def contender(module, dtype, as_bits=False):
        values = [sample(r, dtype, nbytes, data) for r in (rank, 1 - rank)]
        if as_bits:
            values = [bits(x) for x in values]
        sharding = jax.NamedSharding(mesh, jax.P("hosts"))
        given = jax.make_array_from_process_local_data(sharding, values[0])
        function = jax.shard_map(
            collective(module, name),
            mesh=mesh,
            in_specs=jax.P("hosts"),
            out_specs=jax.P("hosts"),
            check_vma=False,
        )
        program = jax.jit(function).lower(given).compile()
        return Contender(program, given, expected(name, *values, rank))

    sums = name in ("psum", "psum_scatter")
    raw = contender(jax.lax, np.dtype(np.float32) if sums else dtype, as_bits=not sums)
    return {"raw": raw, "lax": contender(jax.lax, dtype), "uzip": contender(jax_uzip, dtype)}


def sample(rank: int, dtype: np.dtype, nbytes: int, data: str) -> np.ndarray:
    rng = np.random.default_rng(rank)
    if data == "random bits":
        return np.frombuffer(rng.bytes(nbytes), dtype)
    values = rng.standard_normal(nbytes // dtype.itemsize, np.float32)
    return (values * np.float32(SIGMA)).astype(dtype)


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"uint{x.itemsize * 8}")


# ---- timing ------------------------------------------------------------------------------------


def measure(
    name: str, dtype: np.dtype, nbytes: int, cases: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    run = contenders(name, dtype, nbytes, cases["data"])
    two_hosts.set_rate("10gbit")  # for what is not timed
    for key, (program, given, wanted) in run.items():
        got = np.asarray(program(given).addressable_shards[0].data)
        if not np.array_equal(bits(got), bits(wanted)):
            sys.exit(f"{key} {name} of {nbytes} bytes of {dtype.name}: bits differ")
    for rate in cases["rates"]:
        two_hosts.set_rate(rate)
        seconds = nbytes * 8 / two_hosts.bits_per_second(rate)  # about
        calls = max(1, int(BURST_SECONDS / (seconds + 1e-3)))
        repeats = int(np.clip(cases["seconds"] / (seconds * calls), *cases["repeats"]))
        samples = {key: [] for key in run}
        for _ in range(repeats):  # in turn, so that what else the machine does hits all alike
            for key, contender in run.items():
                samples[key].append(timed(contender, calls))
        for key, pairs in samples.items():
            # Of both ranks: the slower one's time, and the bytes of the one that sent more.
            both = multihost_utils.process_allgather(np.asarray(pairs, np.float32))
            took, sent = np.max(both, axis=0).T
            yield {
                "collective": name,
                "dtype": dtype.name,
                "bytes": nbytes,
                "rate": rate,
                "contender": key,
                "seconds": [round(float(t), 6) for t in took],
                "sent": int(np.median(sent)),
            }


def timed(contender: Contender, calls: int) -> tuple[float, float]:
    """Seconds and bytes sent of one call, as the mean of some."""
    multihost_utils.sync_global_devices("start")
    sent, start = two_hosts.sent_bytes(), time.perf_counter()
    for _ in range(calls):
        jax.block_until_ready(contender.program(contender.given))
    took = time.perf_counter() - start
    return took / calls, (two_hosts.sent_bytes() - sent) / calls


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
