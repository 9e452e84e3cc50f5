"""Which leaves of a pytree travel together, so that a few large messages go instead of many small."""

UNSAFE = ("float8_e3m4", "float8_e4m3", "float8_e5m2")
"""The dtypes whose NaNs lose their payload when XLA:CPU cuts arrays: their leaves travel alone."""


def plan(sizes: list[int], limit: int) -> list[list[int]]:
    """Groups leaves, by index, into messages of at most `limit` bytes; a larger leaf stays alone.

    Leaves keep their order, so that every device plans the same.

    >>> plan([10, 20, 300, 30, 60], limit=100)
    [[0, 1, 3], [2], [4]]
    """
    messages: list[list[int]] = []
    current: list[int] = []
    room = -1
    for i, size in enumerate(sizes):
        if size > limit:
            messages.append([i])
        elif size > room:
            current = [i]
            messages.append(current)
            room = limit - size
        else:
            current.append(i)
            room -= size
    return messages
