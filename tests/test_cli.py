import io
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


def safetensors(path, header, values):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + values)
    return path


def test_analyze_prints_a_table(npz, capsys):
    assert main(["analyze", str(npz)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line[0] != "-"] == [
        *("tensor", "big", "small", "step", "total")
    ]


def test_cast_sort_and_limit(npz, capsys):
    assert main(["analyze", str(npz), "--cast", "bf16", "--sort", "raw", "--limit", "1"]) == 0
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


@pytest.mark.parametrize("json_", [True, False])
def test_files_that_can_be_read_are_shown_beside_those_that_cannot(npz, tmp_path, capsys, json_):
    np.save(tmp_path / "x.npy", np.ones(3))
    (tmp_path / "bad.npy").write_bytes(b"nonsense")
    header = {
        "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "v": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
    }
    half_good = safetensors(tmp_path / "half.safetensors", header, bytes(8))
    missing, long = tmp_path / "none.npz", tmp_path / ("n" * 300 + ".npy")
    files = [tmp_path / "bad.npy", npz, half_good, long, tmp_path / "x.npy", missing]
    assert main(["analyze", *map(str, files), *["--json"] * json_]) == 1
    captured = capsys.readouterr()
    if json_:
        names = [row["name"] for row in json.loads(captured.out)["tensors"]]
    else:
        names = re.findall(r"^(\S+: \S+) ", captured.out, re.MULTILINE)[:4]
    assert names == ["weights.npz: big", "weights.npz: small", "weights.npz: step", "x.npy: x"]
    assert "half" not in captured.out
    errors = captured.err.splitlines()
    assert len(errors) == 4
    for error, path in zip(errors, [files[0], half_good, long, missing], strict=True):
        assert error.startswith(f"jax_uzip: {path}: ")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize("name", ["\ud800", "a\x1b[2Jb\nc", "größe/重み"])
@pytest.mark.parametrize("json_", [True, False])
def test_names_reach_any_output_without_harm(tmp_path, monkeypatch, encoding, name, json_):
    header = {name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    path = safetensors(tmp_path / "m.safetensors", header, bytes(8))
    out = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["analyze", str(path), *["--json"] * json_]) == 0
    text = out.buffer.getvalue().decode(encoding)
    assert all(c.isprintable() or c == "\n" for c in text)
    if json_:
        assert json.loads(text)["tensors"][0]["name"] == name


def test_names_of_files_are_escaped_in_errors(tmp_path, capsys):
    assert main(["analyze", str(tmp_path / "a\x1b[2J\n.npy")]) == 1
    assert r"a\x1b[2J\n.npy: No such file" in capsys.readouterr().err


def test_void_values_are_said_to_be_so_and_taken_for_what_they_are(tmp_path, capsys):
    x = (np.random.default_rng(0).standard_normal((90, 100)) * 0.02).astype(np.float32)
    half, eighth = x.astype(ml_dtypes.bfloat16), x.astype(ml_dtypes.float8_e4m3fn)
    path = tmp_path / "m.npz"
    np.savez(path, half=half, eighth=eighth, struct=np.zeros(9, [("a", "i1"), ("b", "i1")]))

    def rows(*arguments):
        assert main(["analyze", str(path), "--json", *arguments]) == 0
        found = json.loads(capsys.readouterr().out)
        return [row["dtype"] for row in found["tensors"]], found

    dtypes, found = rows()
    assert dtypes == ["void16", "void8", "struct"]
    assert "--void-as" in found["notes"][0]
    assert rows("--void-as", "bf16")[0] == ["bfloat16", "void8", "struct"]
    dtypes, found = rows("--void-as", "bfloat16", "--void-as", "e4m3fn")
    assert dtypes == ["bfloat16", "float8_e4m3fn", "struct"]
    assert found["notes"] == []
    expected = jax_uzip.analyze([half, eighth]).to_dict()["tensors"]
    for row, as_saved in zip(found["tensors"], expected, strict=False):
        assert row | {"name": ""} == as_saved | {"name": ""}


def test_dtypes_that_files_do_name_stay(tmp_path, capsys):
    header = {"w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}
    path = safetensors(tmp_path / "m.safetensors", header, bytes(8))
    assert main(["analyze", str(path), "--void-as", "f16"]) == 0
    assert "bfloat16[4]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["analyze"], "FILE"),
        (["analyze", "x.npy", "--cast", "float7"], "'float7' is none of bfloat16, float16"),
        (["analyze", "x.npy", "--cast", "int32"], "'int32' is none of"),
        (["analyze", "x.npy", "--cast", "complex64"], "'complex64' is none of bfloat16"),
        (["analyze", "x.npy", "--cast", "c64"], "'c64' is none of bfloat16"),
        (["analyze", "x.npy", "--cast", "bf17"], "or for short bf16, f16, f32"),
        (["analyze", "x.npy", "--void-as", "V2"], "'V2' is none of bfloat16"),
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
    header = {"w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}
    path = safetensors(tmp_path / "m.safetensors", header, x.tobytes())
    assert main(["analyze", str(path)]) == 0
    assert "bfloat16[4]" in capsys.readouterr().out
