"""What `python -m jax_uzip run` prints at the end: which collectives were compressed, and what that saved."""

import atexit
import sys
from collections.abc import Sequence

import jax

from jax_uzip._src import drop_in, record, tables
from jax_uzip._src.options import default


def begin(name: str, failed: Sequence[Exception]) -> None:
    """Turns the flag on, counts, and reports when Python exits, before JAX is gone.

    Args:
      name: of the script.
      failed: is filled before that time if the script has failed.
    """
    recorder = record.Recorder()
    drop_in.enable()
    record.listen_everywhere(recorder)
    atexit.register(_end, name, recorder, failed)


def _end(name: str, recorder: record.Recorder, failed: Sequence[Exception]) -> None:
    if recorder.sent and not (failed and jax.process_count() > 1):  # the others might wait for us
        record.wait()
    print(f"\n{text(name, recorder)}", file=sys.stderr)


def text(name: str, recorder: record.Recorder) -> str:
    """The report."""
    if not recorder.sent and not recorder.refused:
        why = "" if default().enabled else " (JAX_UZIP_ENABLED turns everything off)"
        return f"jax_uzip: {name} lowered no collective that could have been compressed{why}"
    parts = [f"jax_uzip: what the devices of this process sent in {name}{_process()}"]
    if recorder.sent:
        parts.append(_sent(recorder.sent))
    if recorder.refused:
        rows = [(*_described(kind), reason) for kind, reason in recorder.refused.items()]
        parts.append(tables.text((*_KIND, "left to jax.lax"), rows, left=(0, 1, 2, 3)))
    return "\n\n".join(parts)


def _process() -> str:
    if jax.process_count() == 1:
        return ""
    return f" (process {jax.process_index()} of {jax.process_count()})"


_KIND = ("collective", "axis", "operand")


def _described(kind: record.Collective) -> tuple[str, str, str]:
    return kind.name, ",".join(map(str, kind.axis)), tables.array(kind.dtype, kind.shape)


def _sent(sent: dict[record.Collective, record.Sent]) -> str:
    together = record.Sent()
    for one in sent.values():
        together.calls += one.calls
        together.raw_bytes += one.raw_bytes
        together.sent_bytes += one.sent_bytes
    return tables.text(
        (*_KIND, "calls", "raw bytes", "sent", "saved", ""),
        [(*_described(kind), *_numbers(one)) for kind, one in sent.items()],
        ("total", "", "", *_numbers(together)),
        left=(0, 1, 2),
    )


def _numbers(sent: record.Sent) -> tuple[str, ...]:
    saved = sent.raw_bytes - sent.sent_bytes
    return (
        f"{sent.calls:,}",
        f"{sent.raw_bytes:,}",
        f"{sent.sent_bytes:,}",
        f"{saved:,}",
        f"{saved / sent.raw_bytes:.1%}" if sent.raw_bytes else "",
    )
