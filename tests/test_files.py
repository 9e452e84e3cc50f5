import io
import json
import pickle
import time
import zipfile

import data
import ml_dtypes
import model
import numpy as np
import pytest

from jax_uzip._src.files import FileError, tensors


def save(path, header, values=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(
        (len(text) if length is None else length).to_bytes(8, "little") + text + values
    )
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


# ---- .safetensors ------------------------------------------------------------------------------


def test_safetensors_are_as_their_own_library_reads_them():
    expected = pytest.importorskip("safetensors.numpy").load_file(model.path())
    found = dict(tensors(model.path()))
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert found[name].dtype == x.dtype
        assert found[name].shape == x.shape
        assert (data.bits(found[name]) == data.bits(x)).all()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("BF16", ml_dtypes.bfloat16),
        ("F16", np.float16),
        ("F64", np.float64),
        ("C64", np.complex64),
        ("F8_E4M3", ml_dtypes.float8_e4m3fn),
        ("F8_E5M2", ml_dtypes.float8_e5m2),
        ("F8_E8M0", ml_dtypes.float8_e8m0fnu),
        ("BOOL", np.bool_),
    ],
)
def test_dtypes_and_unaligned_data(tmp_path, name, dtype):
    x = np.ones((3, 2), dtype)
    header = {"a": entry("U8", [1], [0, 1]), "b": entry(name, x.shape, [1, 1 + x.nbytes])}
    found = dict(tensors(save(tmp_path / "m.safetensors", header, b"\1" + x.tobytes())))
    assert found["b"].dtype == dtype
    assert (found["b"] == x).all()


def test_dtypes_below_eight_bits_come_as_bytes(tmp_path):
    header = {"__metadata__": {"format": "pt"}, "w": entry("F4", [4], [0, 2])}
    ((name, x),) = tensors(save(tmp_path / "m.safetensors", header, b"ab"))
    assert (name, x.dtype, x.shape) == ("w", np.uint8, (2,))


def test_empty_tensors_and_files(tmp_path):
    assert list(tensors(save(tmp_path / "a.safetensors", {}))) == []
    ((_, x),) = tensors(
        save(tmp_path / "b.safetensors", {"w": entry(shape=[0, 3], offsets=[0, 0])})
    )
    assert x.shape == (0, 3)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        ({"w": 3}, "must have"),
        ({"w": {"dtype": "F32", "shape": [2]}}, "must have"),
        ({"w": entry(offsets=[0])}, "must have"),
        ({"w": entry(shape=[-2])}, r"shape \[-2\]"),
        ({"w": entry(shape=[2.0])}, "shape"),
        ({"w": entry(shape=[True, 2])}, "shape"),
        ({"w": {**entry(), "shape": "2"}}, "shape '2'"),
        ({"w": entry(shape=[0, 2**80], offsets=[0, 0])}, "shape"),
        ({"w": entry(shape=[0, 2**62, 2**62], offsets=[0, 0])}, "shape"),
        ({"w": entry(shape=[1] * 100 + [2])}, "shape"),
        ({"w": entry("F4", shape=[1] * 100 + [2])}, "shape"),
        ({"w": entry(shape=[3])}, "has 8 bytes"),
        ({"w": entry(offsets=[0, 16], shape=[4])}, "in 8 bytes of data"),
        ({"w": entry(offsets=[8, 0])}, "data_offsets"),
        ({"w": entry(offsets=[-8, 0])}, "data_offsets"),
        ({"w": entry(offsets=["0", "8"])}, "data_offsets"),
        ({"w": {**entry(), "data_offsets": "08"}}, "data_offsets"),
        ({"w": {**entry(), "data_offsets": {"a": 0, "b": 8}}}, "data_offsets"),
    ],
)
def test_malformed_safetensors(tmp_path, header, message):
    path = save(tmp_path / "m.safetensors", header, bytes(8))
    with pytest.raises(FileError, match=message) as error:
        list(tensors(path))
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "entry_of",
    [
        lambda many: entry(shape=many),
        lambda many: entry("F4", shape=many),
        lambda many: entry(shape=[2**63 - 1] * 200_000),
        lambda many: entry(offsets=many),
        lambda many: entry(offsets=many[:2]),
        lambda many: entry(offsets=[0, many]),
        lambda many: {"dtype": many},
    ],
)
@pytest.mark.parametrize("name", ["w", "w" * 3_000_000])
def test_huge_headers_are_refused_at_once_and_in_a_few_words(tmp_path, entry_of, name):
    path = save(tmp_path / "m.safetensors", {name: entry_of([10**4300 - 1] * 700)}, bytes(8))
    start = time.process_time()
    with pytest.raises(FileError, match="malformed: tensor") as error:
        list(tensors(path))
    assert time.process_time() - start < 5
    assert len(str(error.value)) < len(str(path)) + 1000


@pytest.mark.parametrize("length", [3, 2**20, 2**63, 2**64 - 1])
def test_a_header_longer_than_the_file_and_a_cut_one(tmp_path, length):
    with pytest.raises(FileError, match="malformed"):
        list(tensors(save(tmp_path / "m.safetensors", {"w": entry()}, bytes(8), length)))


@pytest.mark.parametrize("content", [b"", b"1234567"])
def test_files_too_short_for_a_header(tmp_path, content):
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(FileError, match="too few"):
        list(tensors(path))


# ---- .npz and .npy -----------------------------------------------------------------------------


def test_npz_and_npy(tmp_path):
    x, y = np.arange(6.0).reshape(2, 3), np.arange(3)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    np.savez_compressed(tmp_path / "b.npz", x=x, y=y)
    np.save(tmp_path / "c.npy", x)
    for name in ("a.npz", "b.npz"):
        found = dict(tensors(tmp_path / name))
        assert found.keys() == {"x", "y"}
        assert (found["x"] == x).all()
        assert found["y"].dtype == y.dtype
    ((name, found),) = tensors(tmp_path / "c.npy")
    assert name == "c"
    assert (found == x).all()


def npy(x):
    file = io.BytesIO()
    np.save(file, x, allow_pickle=True)
    return file.getvalue()


def npz(*members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


NPY = npy(np.arange(1000.0))
NPZ = npz(("a.npy", NPY), ("b.npy", NPY))
OBJECTS = npy(np.array([{}]))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(
            ("m.npy", content, "not a .npy file")
            for content in (b"", b"abc", b"nonsense" * 10, NPY[:5], pickle.dumps([1, 2]), NPZ)
        ),
        ("m.npy", NPY[:7], "EOF"),
        ("m.npy", NPY[:50], "EOF: reading array header, expected 118 bytes got 40"),
        ("m.npy", NPY[:128], "it ends before its last value"),
        ("m.npy", NPY[:-1], "it ends before its last value"),
        ("m.npy", OBJECTS, "it holds Python objects, which are not read"),
        ("m.npy", npy(np.ones(3, ml_dtypes.float8_e5m2)), "NumPy cannot load its dtype"),
        ("m.npy", b"\x93NUMPY\1\0\xff\xff" + b" " * 65535, "its header is longer"),
        *(
            ("m.npz", content, "not a .npz archive")
            for content in (b"", b"PK", b"garbage" * 9, pickle.dumps([1, 2]), NPY, OBJECTS)
        ),
        ("m.npz", b"PK\3\4 nonsense", "it has no zip directory at its end"),
        ("m.npz", NPZ[:-30], "it has no zip directory at its end"),
        ("m.npz", npz(("a.npy", NPY[:-1])), "array 'a': EOF: reading array data"),
        ("m.npz", npz(("a.npy", b"nonsense")), "array 'a': not a .npy file"),
        ("m.npz", npz(("a.npy", OBJECTS)), "array 'a': it holds Python objects"),
    ],
)
def test_what_is_no_array_or_half_of_one(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(FileError) as error:
        list(tensors(path))
    assert str(error.value).startswith(f"{path}: malformed: {message}")
    assert "allow" not in str(error.value)


def test_other_files_in_an_archive_are_left_out(tmp_path):
    path = tmp_path / "m.npz"
    path.write_bytes(npz(("README.txt", b"text"), ("a.npy", NPY)))
    assert [name for name, _ in tensors(path)] == ["a"]


# ---- any of them -------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "npy"])
def test_damaged_files_are_errors_or_read(tmp_path, suffix):
    rng = np.random.default_rng(0)
    path = tmp_path / f"m.{suffix}"
    x = np.arange(40, dtype=np.float32)
    if suffix == "safetensors":
        save(path, {"w": entry(shape=[40], offsets=[0, 160])}, x.tobytes())
    elif suffix == "npz":
        np.savez_compressed(path, w=x)
    else:
        np.save(path, x)
    sound = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(sound[: rng.integers(len(sound) // 2, len(sound) + 1)])
        for at in rng.integers(0, min(len(damaged), 200), rng.integers(1, 4)):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            for _, found in tensors(path):
                assert isinstance(found, np.ndarray)
        except FileError:
            pass


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.npy", "No such file"),
        ("none.safetensors", "No such file"),
        ("none.npz", "No such file"),
        ("model.bin", "unknown format"),
        ("folder.npy", "is a directory"),
        ("n" * 300 + ".npy", "name too long"),
    ],
)
def test_what_is_not_there_or_not_known(tmp_path, name, message):
    (tmp_path / "model.bin").touch()
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(FileError, match=message):
        list(tensors(tmp_path / name))
