"""Tables for terminals."""

from collections.abc import Collection, Sequence

Row = Sequence[str]


def text(
    header: Row, rows: Sequence[Row], total: Row | None = None, *, left: Collection[int]
) -> str:
    """A header, a rule, rows and, below another rule, their total.

    Args:
      header: the names of the columns.
      rows: as many cells each.
      total: as many cells again, or None for no last line.
      left: the columns that are adjusted to the left.
    """
    lines = [header, *rows] + ([total] if total else [])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    first, *others = [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    if total is None:
        return "\n".join([first, rule, *others])
    return "\n".join([first, rule, *others[:-1], rule, others[-1]])


def array(dtype: str, shape: Sequence[int]) -> str:
    """The type of an array in short, as in ``bfloat16[8,128]``."""
    return f"{dtype}[{','.join(map(str, shape))}]"
