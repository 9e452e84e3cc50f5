"""Lossless-compressed collectives for JAX: the values of `jax.lax`, fewer bytes on the wire.

Inside `jax.shard_map`, `jax_uzip.all_gather(x, "i", tiled=True)` is `jax.lax.all_gather` with a
compressed payload, and so are `all_to_all`, `ppermute`, `pbroadcast`, `psum`, `pmean` and
`psum_scatter`; `pvary` does the same for the gradients of replicated parameters.  `encode` and `decode`
offer the codec alone, and `analyze` says what it would save on given data.
"""

from jax_uzip._src.analyze import analyze
from jax_uzip._src.codec import Encoded, decode, encode
from jax_uzip._src.collectives.all_gather import all_gather
from jax_uzip._src.collectives.all_to_all import all_to_all
from jax_uzip._src.collectives.pbroadcast import pbroadcast
from jax_uzip._src.collectives.ppermute import ppermute
from jax_uzip._src.collectives.psum import pmean, psum
from jax_uzip._src.collectives.psum_scatter import psum_scatter
from jax_uzip._src.collectives.pvary import pvary
from jax_uzip._src.drop_in import disable, enable, enabled
from jax_uzip._src.explain import explain
from jax_uzip._src.options import Options

__version__ = "0.1.0"

__all__ = [
    "Encoded",
    "Options",
    "all_gather",
    "all_to_all",
    "analyze",
    "decode",
    "disable",
    "enable",
    "enabled",
    "encode",
    "explain",
    "pbroadcast",
    "pmean",
    "ppermute",
    "psum",
    "psum_scatter",
    "pvary",
]
