import pytest

from jax_uzip._src.packing import plan


@pytest.mark.parametrize(
    ("sizes", "limit", "messages"),
    [
        ([], 100, []),
        ([10, 20, 300, 30, 60], 100, [[0, 1, 3], [2], [4]]),
        ([100, 1], 100, [[0], [1]]),
        ([50, 50, 1], 100, [[0, 1], [2]]),
        ([101, 101], 100, [[0], [1]]),
        ([0, 5, 0], 0, [[0, 2], [1]]),
        ([0, 5, 0], 5, [[0, 1, 2]]),
    ],
)
def test_packing(sizes, limit, messages):
    assert plan(sizes, limit) == messages
