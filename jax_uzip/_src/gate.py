"""Compress this message or not, and why.

Pure functions of static facts (dtype, sizes, the kind of mesh), never of values or of the rank: all
devices of a program must come to the same decision, or they would wait for each other forever.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jax_uzip._src import native
from jax_uzip._src.options import Options

# Sizes travel as 32-bit numbers, and XLA indexes the payload with signed ones.
MAX_PAYLOAD_BYTES = (1 << 31) - 1


class Decision(NamedTuple):
    """Whether to compress, and the reason in words that a user can act on."""

    compress: bool
    reason: str


class Message(NamedTuple):
    """What one device sends to one group, before compression."""

    dtype: np.dtype
    n: int
    rows: int = 1  # parts of equal size that are encoded one by one

    @property
    def nbytes(self) -> int:
        return self.n * self.dtype.itemsize

    @property
    def payload_capacity(self) -> int:
        """The most bytes that the payloads of all its rows can take."""
        return self.rows * native.payload_capacity(-(-self.n // self.rows), self.dtype)


class Axis(NamedTuple):
    """The static facts about the devices that take part."""

    size: int
    partitioned_axes: tuple[
        str, ...
    ] = ()  # mesh axes of more than one device left to the partitioner
    checked_groups: bool = False  # axis_index_groups under check_vma=True
    uneven_groups: bool = False  # axis_index_groups of different sizes
    positional: bool = False  # dimensions of the array itself are among the axes


def decide(message: Message, axis: Axis, options: Options) -> Decision:
    """Compress `message` on its way along `axis`?"""
    refusal = _refuse_axis(axis) or _refuse_message(message, options)
    if refusal:
        return Decision(False, refusal)
    return accept(message)


def accept(message: Message) -> Decision:
    """The decision to compress."""
    return Decision(True, f"{message.dtype.name}, {message.nbytes} bytes")


def decide_platform(platforms: Sequence[str]) -> Decision:
    """Compress on any of some platforms of XLA?"""
    if not set(platforms) & set(native.PLATFORMS):
        return Decision(False, f"the codec does not run on platform {', '.join(platforms)}")
    return Decision(True, "the codec runs there")


def supports(dtype: np.dtype, options: Options) -> bool:
    """Whether messages of a dtype are compressed at all."""
    return _refuse_dtype(dtype, options) is None


def _refuse_message(message: Message, options: Options) -> str | None:
    if refusal := _refuse_dtype(message.dtype, options):
        return refusal
    if message.n == 0:
        return "empty"
    if message.nbytes < options.min_bytes:
        return f"{message.nbytes} bytes are under min_bytes={options.min_bytes}"
    if message.payload_capacity > MAX_PAYLOAD_BYTES:
        return f"{message.nbytes} bytes are over the 2 GiB that one message may have"
    return None


def _refuse_dtype(dtype: np.dtype, options: Options) -> str | None:
    if not options.enabled:
        return "options.enabled is False"
    if dtype not in native.dtypes():
        return f"{dtype.name} is not a dtype that the codec compresses"
    if options.dtypes is not None and dtype.name not in options.dtypes:
        return f"{dtype.name} is not in options.dtypes"
    return None


def _refuse_axis(axis: Axis) -> str | None:
    if axis.positional:
        return "an axis is a dimension of the array (a mapped axis of vmap)"
    if axis.uneven_groups:
        return "axis_index_groups are of different sizes"
    if axis.size == 1:
        return "the axis has one device"
    if axis.partitioned_axes:
        names = ", ".join(axis.partitioned_axes)
        return f"the partitioner still owns mesh axis {names} (partial-manual shard_map)"
    if axis.checked_groups:
        return "axis_index_groups need check_vma=False"
    return None
