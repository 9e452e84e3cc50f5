"""Who takes part in a collective: axis names and index groups, and how values of all of them move."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax


class Group(NamedTuple):
    """The devices along some axes, or along parts of them; ranks count in the order of the names."""

    axes: tuple[Hashable, ...]
    index_groups: Sequence[Sequence[int]] | None = None

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> "Group":
        """The group of an equation, from its parameters, whatever JAX calls them there."""
        axes = params["axes"] if "axes" in params else params["axis_name"]
        axes = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
        return cls(axes, params.get("axis_index_groups"))

    @property
    def positional(self) -> bool:
        """Whether dimensions of the array itself are among the axes (vmap makes such)."""
        return any(isinstance(axis, int) for axis in self.axes)

    @property
    def uneven(self) -> bool:
        """Whether some devices have more peers than others."""
        return self.index_groups is not None and len(set(map(len, self.index_groups))) > 1

    @property
    def size(self) -> int:
        """The number of devices that exchange values with each other."""
        return lax.axis_size(self.axes) if self.index_groups is None else len(self.index_groups[0])

    @property
    def rank(self) -> Array:
        """Of this device among those that it exchanges values with."""
        index = lax.axis_index(self.axes)
        if self.index_groups is None:
            return index
        ranks = {device: rank for group in self.index_groups for rank, device in enumerate(group)}
        return jnp.asarray([ranks[device] for device in sorted(ranks)])[index]

    def exchange(self, words: Array) -> Array:
        """Of a group of two: what the other device sends, as unsigned integers.

        XLA's exchanges over Gloo send one way after the other, since what says that a device is ready to
        receive waits behind all that it sends.  Its sum sends both ways at once, and no more bytes.
        """
        both = lax.psum(words, self.axes, axis_index_groups=self.index_groups)
        return both - words

    def all_gather(self, rows: Array) -> Array:
        """[1, w] of every device as [K, w]."""
        return lax.all_gather(rows, self.axes, axis_index_groups=self.index_groups, tiled=True)

    def all_to_all(self, rows: Array) -> Array:
        """[K, w]: row k to device k, which receives them in the order of their senders."""
        return lax.all_to_all(
            rows, self.axes, 0, 0, axis_index_groups=self.index_groups, tiled=True
        )

    def max(self, x: Array) -> Array:
        """The maximum over the devices."""
        return lax.pmax(x, self.axes, axis_index_groups=self.index_groups)


def split(x: Array, dimension: int, size: int) -> Array:
    """An array cut along a dimension into parts, one a device, each of them flat: [size, n]."""
    *before, length = x.shape[: dimension + 1]
    after = x.shape[dimension + 1 :]
    cut = lax.reshape(x, (*before, size, length // size, *after))
    order = [dimension, *(d for d in range(cut.ndim) if d != dimension)]
    return lax.reshape(lax.transpose(cut, order), (size, x.size // size))


def join(rows: Array, shape: tuple[int, ...], dimension: int) -> Array:
    """Flat parts, [size, n], each of them reshaped to `shape`, joined along a dimension."""
    size = rows.shape[0]
    parts = lax.reshape(rows, (size, *shape))
    order = [*range(1, dimension + 1), 0, *range(dimension + 1, parts.ndim)]
    joined = (*shape[:dimension], size * shape[dimension], *shape[dimension + 1 :])
    return lax.reshape(lax.transpose(parts, order), joined)
