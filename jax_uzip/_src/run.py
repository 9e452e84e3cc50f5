"""`python -m jax_uzip run train.py`: runs a script that knows nothing of jax_uzip with the flag on.

This file is the main program of an interpreter of its own, in which nothing has been imported yet: a
script may set variables that JAX reads when it is imported.  So jax_uzip comes in behind JAX: when the
script's ``import jax`` is done, the flag is turned on and what collectives send is counted.
"""

import importlib.util
import os
import runpy
import sys
import types
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path

# ---- in the interpreter of the command line ------------------------------------------------------


def start(target: list[str]) -> None:
    """Replaces this process by an interpreter with the same flags that runs `target`."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *_flags(sys.orig_argv), __file__, *target])


def _flags(words: list[str]) -> list[str]:
    """Python's own flags, from the words of a command line with ``-m jax_uzip``."""
    for i, word in enumerate(words):
        if word.startswith("-") and (word.endswith("mjax_uzip") or words[i + 1] == "jax_uzip"):
            last = word.removesuffix("jax_uzip").removesuffix("m")
            return [*words[1:i], *([last] if last != "-" else [])]
    return []


# ---- in its own interpreter --------------------------------------------------------------------


def main() -> None:
    """Runs ``script.py args…`` or ``-m module args…`` as Python itself would."""
    target = sys.argv[1:]
    if not sys.flags.safe_path:
        del sys.path[0]  # this file's folder
    sys.meta_path.insert(0, _AfterJax())
    if target[0] == "-m":
        _run_module(target[1], target[1:])
    else:
        _run_script(target[0], target)


def _run_script(path: str, argv: list[str]) -> None:
    sys.argv = argv
    if Path(path).is_dir() or not _is_source(path):  # a folder or an archive with a __main__.py
        runpy.run_path(path, run_name="__main__")
        return
    if not sys.flags.safe_path:
        sys.path.insert(0, str(Path(path).resolve().parent))
    full_path = str(Path(path).absolute())
    module = types.ModuleType("__main__")
    dunder = (name for name in globals() if name.startswith("__"))  # as this Python has them
    module.__dict__.update({name: {} if name == "__annotations__" else None for name in dunder})
    module.__dict__.update(
        __name__="__main__",
        __file__=full_path,
        __loader__=SourceFileLoader("__main__", full_path),
        __builtins__=__builtins__,
    )
    sys.modules["__main__"] = module
    source = Path(path).read_bytes()
    _without_our_frames(lambda: exec(compile(source, full_path, "exec"), module.__dict__))


def _run_module(name: str, argv: list[str]) -> None:
    sys.argv = argv
    if not sys.flags.safe_path:
        sys.path.insert(0, str(Path.cwd()))
    _without_our_frames(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True))


def _is_source(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(2) != b"PK"


def _without_our_frames(run) -> None:
    """Shows the traceback that the script has when Python runs it alone."""
    try:
        run()
    except Exception as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            trace = trace.tb_next
        error = error.with_traceback(trace)
        sys.excepthook(type(error), error, trace)
        _failed.append(error)
        sys.exit(1)


_failed: list[Exception] = []

# ---- when the script imports JAX ---------------------------------------------------------------


class _AfterJax:
    """A finder of modules that only listens: after ``import jax``, jax_uzip is imported too."""

    def find_spec(self, name, path=None, target=None) -> ModuleSpec | None:
        del path, target
        if name != "jax":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec("jax")
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                _begin()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _begin() -> None:
    _import_ours()
    from jax_uzip._src import report

    report.begin(Path(sys.argv[0]).name, failed=_failed)


def _import_ours() -> None:
    """Imports the jax_uzip that this file is of, wherever the script's own path leads."""
    if "jax_uzip" in sys.modules:
        return
    package = Path(__file__).parents[1]
    spec = importlib.util.spec_from_file_location(
        "jax_uzip", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["jax_uzip"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["jax_uzip"])


if __name__ == "__main__":
    main()
