"""Private: what users may import is in `jax_uzip`."""
