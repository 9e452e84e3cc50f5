"""`python -m jax_uzip run` on small scripts: they see what they would see alone, and the report is true."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jax_uzip
from jax_uzip._src import run

PACKAGE = str(Path(jax_uzip.__file__).parents[1])

# Sums the gradient of replicated weights (in no call of its own) and a loss that is too small.
TRAIN = """
import jax, jax.numpy as jnp, sys
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
@jax.jit
@jax.shard_map(mesh=mesh, in_specs=(jax.P(), jax.P("data")), out_specs=(jax.P(), jax.P()))
def step(w, x):
    def loss(w):
        return jax.lax.pmean(((x @ w) ** 2).mean(), "data")
    value, gradient = jax.value_and_grad(loss)(w)
    return value, w - gradient
w = jax.random.normal(jax.random.key(0), (256, 128))
x = jax.random.normal(jax.random.key(1), (64, 256))
for _ in range(5):
    value, w = step(w, x)
"""


def python(*arguments, cwd, **environ):
    # Scripts find their neighbours as they do for a user, whatever keeps a checkout off our own path.
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**inherited, "PYTHONPATH": PACKAGE, **environ},
        text=True,
        capture_output=True,
        check=False,
    )


MAIN = str(Path(run.__file__))
"""What the command line starts in the end; starting it at once saves an import of JAX."""


@pytest.fixture
def script(tmp_path):
    """Runs the text of a script."""

    def run_text(text, *arguments, command=(MAIN,), **environ):
        (tmp_path / "script.py").write_text(text)
        return python(*command, "script.py", *arguments, cwd=tmp_path, **environ)

    return run_text


# ---- the report --------------------------------------------------------------------------------


def test_the_report_counts_every_call_and_byte(script):
    done = script(TRAIN, command=("-m", "jax_uzip", "run"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "jax_uzip: what the devices of this process sent in script.py" in done.stderr
    row = re.search(
        r"^psum +data +float32\[256,128\] +40 +([\d,]+) +([\d,]+) +([\d,]+) +([\d.]+)%$",
        done.stderr,
        re.M,
    )
    raw, sent, saved = (int(text.replace(",", "")) for text in row.groups()[:3])
    assert raw == 40 * (1 + 1 / 8) * 256 * 128 * 4  # parts to all, and the sum of one part back
    assert raw - sent == saved
    assert sent <= 0.87 * raw  # Shannon's bound is 1 / 1.206
    assert float(row[4]) == round(100 * saved / raw, 1)
    total = re.search(r"^total .*$", done.stderr, re.M)[0].split()
    assert total[1:] == list(row.group(0).split()[3:])
    assert re.search(
        r"^psum +data +float32\[\] +4 bytes are under min_bytes=65536$", done.stderr, re.M
    )


def test_all_calls_are_counted_however_the_script_ends(script):
    """Also those still running: here the values are dropped at once."""
    again = "\nfor _ in range(60): step(w, x)\n"
    for end in ("sys.exit(3)", "raise ValueError"):
        done = script(TRAIN + again + end)
        assert re.search(r"^psum .* 520 ", done.stderr, re.M), done.stderr


def test_options_come_from_the_environment(script):
    small = script(TRAIN, JAX_UZIP_MIN_BYTES="200000")
    assert "131072 bytes are under min_bytes=200000" in small.stderr
    assert "saved" not in small.stderr
    off = script(TRAIN, JAX_UZIP_ENABLED="0")
    assert "lowered no collective that could have been compressed (JAX_UZIP_ENABLED" in off.stderr


def test_scripts_without_collectives_and_without_jax(script):
    done = script("import jax; jax.jit(lambda x: x + 1)(1)")
    assert (
        done.stderr
        == "\njax_uzip: script.py lowered no collective that could have been compressed\n"
    )
    done = script("print(1)")
    assert (done.stdout, done.stderr) == ("1\n", "")


# ---- the script --------------------------------------------------------------------------------

SEEN = """
import sys, os
print(__name__, __file__, sys.argv, __spec__, __doc__, sys.flags.dev_mode, sys.flags.optimize)
print(os.path.realpath(sys.path[0]) == os.path.realpath(os.getcwd()), sys.path[1:])
print(sys.modules["__main__"].__dict__ is globals(), sorted(globals()))
print([name for name in ("jax", "numpy", "jax_uzip", "runpy") if name in sys.modules])
"""


def test_a_script_sees_what_it_sees_alone(script, tmp_path):
    flags = ("-O", "-X", "utf8")
    ours = script(SEEN, "--flag", "a b", "-m", command=(*flags, "-m", "jax_uzip", "run"))
    alone = python(*flags, "script.py", "--flag", "a b", "-m", cwd=tmp_path)
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout.replace("['runpy']", "[]") == alone.stdout  # it is a small module


def test_variables_that_jax_reads_at_import_may_be_set_by_the_script(script):
    done = script(
        "import os; os.environ['JAX_ENABLE_X64'] = '1'\n"
        "import jax; print(jax.config.jax_enable_x64, 'jax_uzip' in __import__('sys').modules)"
    )
    assert done.stdout == "True True\n", done.stderr


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(7)", 7),
        ("sys.exit('no')", 1),
        ("raise SystemExit", 0),
        ("1 / 0", 1),
        ("quit(4)", 4),
    ],
)
def test_exit_codes_and_tracebacks(script, tmp_path, end, code):
    done = script(f"import sys\ndef f():\n    {end}\nf()\n")
    alone = python("script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (code, alone.stdout, alone.stderr)


def test_chained_errors_and_syntax_errors_look_as_they_do_alone(script, tmp_path):
    for text in (
        "try:\n    {}[1]\nexcept KeyError as e:\n    raise ValueError('x') from e\n",
        "x = (\n",
    ):
        done = script(text)
        assert (done.returncode, done.stderr) == (1, python("script.py", cwd=tmp_path).stderr)


def test_what_outlives_the_script_still_finds_its_main_module(script):
    done = script(
        "import atexit, pickle, threading, time\n"
        "class A: pass\n"
        "atexit.register(lambda: print(type(pickle.loads(pickle.dumps(A()))) is A))\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print(A.__module__))).start()\n"
    )
    assert (done.returncode, done.stdout) == (0, "__main__\nTrue\n"), done.stderr


def test_a_module_and_its_neighbours(tmp_path):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "near.py").write_text("NAME = 'near'")
    (package / "train.py").write_text(
        "import sys\nfrom . import near\nprint(__name__, near.NAME, sys.argv[1:], __spec__.name)"
    )
    done = python(MAIN, "-m", "pkg.train", "--steps", "3", cwd=tmp_path)
    assert done.stdout == "__main__ near ['--steps', '3'] pkg.train\n", done.stderr


def test_a_script_elsewhere_imports_its_neighbours(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "near.py").write_text("NAME = 'near'")
    (tmp_path / "a" / "train.py").write_text("import near; print(near.NAME)")
    done = python(MAIN, "a/train.py", cwd=tmp_path)
    assert done.stdout == "near\n", done.stderr


def test_a_script_that_imports_jax_uzip_itself(script):
    done = script("import jax_uzip\n" + TRAIN + "\nprint(jax_uzip.Options().min_bytes)")
    assert done.stdout == "65536\n", done.stderr
    assert re.search(r"^psum .* 40 ", done.stderr, re.M), done.stderr


def test_wrong_arguments(script, tmp_path):
    missing = python("-m", "jax_uzip", "run", "no_such.py", cwd=tmp_path)
    assert missing.returncode != 0
    assert "can't open file 'no_such.py'" in missing.stderr
    assert python("-m", "jax_uzip", "run", cwd=tmp_path).returncode == 2
