import json
import os
import re
import subprocess
import sys

import ml_dtypes
import model
import numpy as np
import pytest

import jax_uzip
from jax_uzip.__main__ import main


@pytest.fixture
def npz(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "weights.npz"
    weights = (rng.standard_normal((64, 256)) * 0.02).astype(np.float32)
    np.savez(path, big=weights, small=weights[:8], step=np.arange(4))
    return path


def test_analyze_prints_a_table(npz, capsys):
    assert main(["analyze", str(npz)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line[0] != "-"] == [
        *("tensor", "big", "small", "step", "total")
    ]


def test_cast_sort_and_limit(npz, capsys):
    assert main(["analyze", str(npz), "--cast", "bfloat16", "--sort", "raw", "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert "bfloat16[64,256]" in out
    assert re.search(r"^\(2 more\)", out, re.MULTILINE)
    assert "small" not in out


def test_json_is_what_analyze_says(npz, capsys):
    assert main(["analyze", str(npz), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == jax_uzip.analyze(dict(np.load(npz))).to_dict()


def test_several_files_name_theirs(npz, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.ones(3))
    assert main(["analyze", str(npz), str(tmp_path / "x.npy"), "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)["tensors"]]
    assert names == ["weights.npz: big", "weights.npz: small", "weights.npz: step", "x.npy: x"]


def test_a_real_model_as_bfloat16(capsys):
    assert main(["analyze", str(model.path()), "--cast", "bfloat16", "--json"]) == 0
    total = json.loads(capsys.readouterr().out)["total"]
    assert total["encoded_bytes"] <= 0.68 * total["raw_bytes"]


def test_a_file_that_cannot_be_read_is_exit_code_1(npz, capsys):
    npz.write_bytes(b"PK\3\4 nonsense")
    assert main(["analyze", str(npz)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"jax_uzip: {npz}: malformed: ")
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["analyze"], "FILE"),
        (["analyze", "x.npy", "--cast", "float7"], "'float7' is none of bfloat16, float16"),
        (["analyze", "x.npy", "--cast", "int32"], "'int32' is none of"),
        (["analyze", "x.npy", "--cast", "complex64"], "not cast to complex"),
        (["analyze", "x.npy", "--limit", "-1"], "not a number of rows"),
        (["analyze", "x.npy", "--sort", "size"], "invalid choice"),
    ],
)
def test_wrong_arguments_are_exit_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_as_a_module_without_any_jax_device(npz):
    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "jax_uzip", *arguments],
            env={**os.environ, "JAX_PLATFORMS": "no_such_platform"},
            text=True,
            capture_output=True,
            check=False,
        )

    version = run("--version")
    assert version.returncode == 0
    assert version.stdout.startswith(f"jax_uzip {jax_uzip.__version__}, wire format ")
    analysis = run("analyze", str(npz))
    assert (analysis.returncode, analysis.stderr) == (0, "")
    assert analysis.stdout.startswith("tensor")


def test_bfloat16_comes_back_from_safetensors(tmp_path, capsys):
    x = np.ones(4, ml_dtypes.bfloat16)
    header = json.dumps({"w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + x.tobytes())
    assert main(["analyze", str(path)]) == 0
    assert "bfloat16[4]" in capsys.readouterr().out
