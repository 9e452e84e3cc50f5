"""02: training with the flag off and on: what stays the same to the bit, and what it saves.

What it shows
  A classifier of handwritten digits, an Equinox model with an Optax optimizer, is trained over eight
  devices in two usual ways.  The training steps call `jax.lax` alone and are not changed; only
  `jax_uzip.enabled(...)` is put around their calls.

How it works
  1. The data are the 1797 digits that scikit-learn ships; one in five is kept for the test.
  2. Data-parallel: every device has all parameters.  JAX sums the gradients itself, at a place where
     no call is written, and with the flag on that sum travels compressed.
  3. Fully sharded (FSDP): every device has an eighth of the float32 parameters and of the optimizer's
     state.  A step gathers the parameters as bfloat16 and scatters the sum of float32 gradients.
  4. Every way is trained with the flag off and, twice, on.  Where only gathers are compressed, losses
     must be those of the flag off, to the bit.  Compressed sums are added in the order of the devices:
     losses must be those of the other run, to the bit; `jax.lax` promises no order.
  Messages here are small: `min_bytes` is lowered so that they go compressed at all.

Run
  python examples/02_train.py [--steps N] [--plot FILE]

Expected output
  handwritten digits: 1437 to train on, 360 to test, 563,722 parameters, 8 devices, jax 0.12.0.1

  training       compressed        last loss   test  sent a step   losses
  data-parallel  nothing             0.10419  96.4%    2,254,892
  data-parallel  sums                0.10419  96.4%    1,948,716   within 4e-07 of off, repeated to the bit
  fully sharded  nothing             0.10262  96.4%    2,395,848
  fully sharded  gathers             0.10262  96.4%    2,352,068   as off to the bit, repeated to the bit
  fully sharded  gathers and sums    0.10262  96.4%    2,139,012   as off to the bit, repeated to the bit

  losses of every step: build/02_train.png

  "sent a step" are the bytes of operands, or of what travels instead, of one device in the first step.
  The exit code is 1 if losses differ that must not.  The plot, build/02_train.png, has all the losses.

Next
  `python -m jax_uzip run train.py` does the same to a script of yours.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from sklearn.datasets import load_digits
from tqdm import tqdm

import jax_uzip

DEVICES = 8
BATCH = 256
WIDTH = 512
AXIS = "devices"
OPTIMIZER = optax.adamw(1e-3)

GATHERS = jax_uzip.Options(min_bytes=4 << 10, dtypes=["bfloat16"])  # sums here are of float32
EVERYTHING = jax_uzip.Options(min_bytes=4 << 10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--plot", type=Path, default=Path("build/02_train.png"))
    chosen = parser.parse_args()

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    mesh = jax.make_mesh((DEVICES,), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))

    train, test = digits()
    trainings = {
        "data-parallel": data_parallel(mesh),
        "fully sharded": fully_sharded(mesh),
    }
    count = sum(x.size for x in jax.tree.leaves(eqx.filter(new_model(), eqx.is_array)))
    print(
        f"handwritten digits: {len(train.labels)} to train on, {len(test.labels)} to test, "
        f"{count:,} parameters, {DEVICES} devices, jax {jax.__version__}\n"
    )

    plans = [
        ("data-parallel", "sums", EVERYTHING),
        ("fully sharded", "gathers", GATHERS),
        ("fully sharded", "gathers and sums", EVERYTHING),
    ]
    print(HEADER.format("training", "compressed", "last loss", "test", "sent a step", "losses"))
    off, curves, wrong = {}, {}, False
    for name, compressed, options in plans:
        training = trainings[name]
        if name not in off:
            off[name] = run(training, train, test, None, chosen.steps)
            curves[f"{name}, flag off"] = off[name].losses
            sent = sent_in_a_step(training, train, None)
            print(line(name, "nothing", off[name], sent, ""))
        first, second = (run(training, train, test, options, chosen.steps) for _ in range(2))
        curves[f"{name}, {compressed} compressed"] = first.losses
        again = same(first.losses, second.losses)
        wrong |= not again or (options is GATHERS and not same(first.losses, off[name].losses))
        sent = sent_in_a_step(training, train, options)
        print(line(name, compressed, first, sent, verdict(first, off[name], again)))
    plot(curves, chosen.plot)
    print(f"\nlosses of every step: {chosen.plot}")
    return int(wrong)


# ---- data and model ----------------------------------------------------------------------------


class Digits(NamedTuple):
    images: jax.Array
    labels: jax.Array


def digits() -> tuple[Digits, Digits]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = np.float32(images[order] / 16), np.int32(labels[order])
    cut = len(labels) * 4 // 5
    return Digits(images[:cut], labels[:cut]), Digits(images[cut:], labels[cut:])


def new_model() -> eqx.nn.MLP:
    return eqx.nn.MLP(64, 10, width_size=WIDTH, depth=3, key=jax.random.key(0))


def mean_loss(model: eqx.nn.MLP, batch: Digits) -> jax.Array:
    logits = jax.vmap(model)(batch.images).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels).mean()


# ---- two ways to train, in JAX alone -----------------------------------------------------------


class Training(NamedTuple):
    """`state` to begin with, `step(state, batch)` to the next and the loss, `model(state)`."""

    state: tuple
    step: Callable
    model: Callable


def data_parallel(mesh) -> Training:
    parameters, static = eqx.partition(new_model(), eqx.is_array)

    @jax.jit
    @partial(
        jax.shard_map, mesh=mesh, in_specs=(jax.P(), jax.P(AXIS)), out_specs=(jax.P(), jax.P())
    )
    def step(state, batch):
        parameters, moments = state

        def loss(parameters):  # its gradient has the sum over the devices
            return jax.lax.pmean(mean_loss(eqx.combine(parameters, static), batch), AXIS)

        value, gradients = jax.value_and_grad(loss)(parameters)
        updates, moments = OPTIMIZER.update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, updates), moments), value

    state = (parameters, OPTIMIZER.init(parameters))
    return Training(state, step, lambda state: eqx.combine(state[0], static))


def fully_sharded(mesh) -> Training:
    parameters, static = eqx.partition(new_model(), eqx.is_array)
    flat, unravel = ravel_pytree(parameters)
    size = flat.size
    flat = jnp.pad(flat, (0, -size % DEVICES))

    def whole(flat):
        return eqx.combine(unravel(flat[:size]), static)

    shards = jax.P(AXIS)
    moments = jax.tree.map(lambda x: shards if x.ndim else jax.P(), OPTIMIZER.init(flat))

    @jax.jit
    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=((shards, moments), jax.P(AXIS)),
        out_specs=((shards, moments), jax.P()),
    )
    def step(state, batch):
        shard, moments = state

        def loss(weights):
            return mean_loss(whole(weights), batch)

        gathered = jax.lax.all_gather(shard.astype(jnp.bfloat16), AXIS, tiled=True)
        # As it fuses what is around a collective with it, XLA would round the loss differently.
        weights = jax.lax.optimization_barrier(gathered.astype(jnp.float32))
        value, gradients = jax.value_and_grad(loss)(weights)
        gradient = jax.lax.psum_scatter(gradients / DEVICES, AXIS, tiled=True)
        updates, moments = OPTIMIZER.update(gradient, moments, shard)
        return (optax.apply_updates(shard, updates), moments), jax.lax.pmean(value, AXIS)

    return Training((flat, OPTIMIZER.init(flat)), step, lambda state: whole(state[0]))


# ---- a training, and what came of it -----------------------------------------------------------


class Outcome(NamedTuple):
    losses: np.ndarray
    accuracy: float


def run(
    training: Training, train: Digits, test: Digits, options: jax_uzip.Options | None, steps: int
) -> Outcome:
    rng = np.random.default_rng(1)
    state, losses = training.state, []
    with jax_uzip.enabled(options or jax_uzip.Options(enabled=False)):
        for _ in tqdm(range(steps), delay=2, leave=False, disable=None):
            chosen = rng.choice(len(train.labels), BATCH, replace=False)
            batch = jax.tree.map(lambda x, chosen=chosen: x[chosen], train)
            state, loss = training.step(state, batch)
            losses.append(loss)
    logits = jax.vmap(training.model(state))(test.images)
    accuracy = float((logits.argmax(1) == test.labels).mean())
    return Outcome(np.stack(losses), accuracy)


def sent_in_a_step(training: Training, train: Digits, options: jax_uzip.Options | None) -> float:
    """Bytes, by a device, in the first step."""
    batch = jax.tree.map(lambda x: x[:BATCH], train)
    with jax_uzip.enabled(options or jax_uzip.Options(enabled=False)):
        explained = jax_uzip.explain(training.step, training.state, batch)
    return explained.bytes_after if options else explained.bytes_before


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


def verdict(outcome: Outcome, off: Outcome, again: bool) -> str:
    apart = np.max(np.abs(outcome.losses / off.losses - 1))
    near = "as off to the bit" if same(outcome.losses, off.losses) else f"within {apart:.0e} of off"
    return f"{near}, {'repeated to the bit' if again else 'NOT REPEATED'}"


HEADER = "{:14} {:17} {:>9} {:>6} {:>12}   {}"


def line(name: str, compressed: str, outcome: Outcome, sent: float, says: str) -> str:
    loss, accuracy = f"{outcome.losses[-1]:.5f}", f"{outcome.accuracy:.1%}"
    return HEADER.format(name, compressed, loss, accuracy, f"{sent:,.0f}", says).rstrip()


def plot(curves: dict[str, np.ndarray], path: Path) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    for i, (label, losses) in enumerate(curves.items()):
        off = label.endswith("off")
        ax.plot(losses, label=label, lw=4 if off else 1.5, alpha=0.35 if off else 1, ls="-:"[i % 2])
    ax.set(xlabel="step", ylabel="loss", yscale="log")
    ax.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
