import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jax_uzip import Options
from jax_uzip._src import native
from jax_uzip._src.options import (
    ENVIRONMENT,
    SHORT_NAMES,
    default,
    dtype_of,
    flag_from_env,
    from_env,
    sources,
    unknown_variables,
)


def test_every_field_has_a_default_and_an_environment_variable():
    fields = Options.__dataclass_fields__
    assert {field for field, _ in ENVIRONMENT.values()} == set(fields)
    assert all(
        variable == f"JAX_UZIP_{field.upper()}" for variable, (field, _) in ENVIRONMENT.items()
    )
    assert from_env({}) == Options()


def test_options_are_hashable_and_canonical():
    a = Options(dtypes=[jnp.float32, "bfloat16"], tiers=[0.5, 0.75], min_bytes=np.int64(7))
    b = Options(dtypes=("bfloat16", np.dtype("float32")), tiers=(0.5, 0.75), min_bytes=7)
    assert a == b
    assert hash(a) == hash(b)
    assert a.dtypes == ("bfloat16", "float32")
    assert type(a.min_bytes) is int


def test_every_dtype_has_a_short_name():
    assert set(SHORT_NAMES.values()) == {dtype.name for dtype in native.dtypes()}
    for short, name in SHORT_NAMES.items():
        assert Options(dtypes=[short]).dtypes == (name,)
        assert from_env({"JAX_UZIP_DTYPES": short}) == Options(dtypes=[name])
        assert dtype_of(short) == dtype_of(name) == np.dtype(getattr(ml_dtypes, name, name))
    assert Options(dtypes=["bf16", "bfloat16", jnp.bfloat16]).dtypes == ("bfloat16",)


def test_options_are_immutable():
    with pytest.raises(AttributeError):
        Options().min_bytes = 1


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"min_bytes": -1}, ValueError, "min_bytes must be 0 or more bytes, got -1"),
        ({"min_bytes": 1.5}, TypeError, "min_bytes must be an integer number of bytes, got 1.5"),
        ({"min_bytes": True}, TypeError, "min_bytes must be an integer"),
        (
            {"pack_bytes": "1M"},
            TypeError,
            "pack_bytes must be an integer number of bytes, got '1M'",
        ),
        ({"enabled": 1}, TypeError, "enabled must be True or False, got 1"),
        ({"dtypes": "bfloat16"}, TypeError, "dtypes must be a sequence of dtypes"),
        (
            {"dtypes": ["int32"]},
            ValueError,
            "int32, which the codec does not compress; choose among",
        ),
        ({"dtypes": ["bf17"]}, ValueError, "bf17, which the codec does not compress"),
        ({"dtypes": []}, ValueError, "dtypes is empty: to compress nothing, choose enabled=False"),
        ({"dtypes": b"bf16"}, TypeError, "dtypes must be a sequence of dtypes"),
        *(
            ({"dtypes": [x]}, TypeError, "dtypes must be a sequence of dtypes, got .* in it")
            for x in (None, 5, [1], (), {}, b"f4", object())
        ),
        ({"pack_bytes": 1 << 31}, ValueError, "pack_bytes must be at most 2147483647, since"),
        ({"tiers": 0.5}, TypeError, "tiers must be a sequence of fractions"),
        *(
            ({"tiers": x}, TypeError, "tiers must be a sequence of fractions")
            for x in (["a"], ["0.5"], [b"0.5"], b"0.5", [None], [0.5j], [10**400])
        ),
        (
            {"tiers": []},
            ValueError,
            "tiers is empty: choose None for the default, or enabled=False",
        ),
        ({"tiers": [0.5, 1.0]}, ValueError, "rising fractions of the raw size between 0 and 1"),
        ({"tiers": [0.5, 0.4]}, ValueError, "tiers must be rising fractions"),
        ({"tiers": [0.5, 0.5]}, ValueError, "tiers must be rising fractions"),
        ({"tiers": [float("nan")]}, ValueError, "tiers must be rising fractions"),
        ({"transport": 1}, TypeError, "transport must be one of auto, composed, got 1"),
        (
            {"transport": "fused"},
            ValueError,
            "transport must be one of auto, composed, got 'fused'",
        ),
        ({"threshold": 1}, TypeError, "threshold"),
    ],
)
def test_errors_name_the_argument_and_the_remedy(arguments, error, says):
    with pytest.raises(error, match=says.replace("(", r"\(")):
        Options(**arguments)


def test_environment_sets_every_field():
    assert from_env(
        {
            "JAX_UZIP_ENABLED": "off",
            "JAX_UZIP_MIN_BYTES": "1024",
            "JAX_UZIP_DTYPES": "float32, bfloat16",
            "JAX_UZIP_PACK_BYTES": "4096",
            "JAX_UZIP_TIERS": "0.5,0.7",
            "JAX_UZIP_TRANSPORT": "composed",
            "UNRELATED": "x",
        }
    ) == Options(
        enabled=False,
        min_bytes=1024,
        dtypes=("bfloat16", "float32"),
        pack_bytes=4096,
        tiers=(0.5, 0.7),
        transport="composed",
    )


@pytest.mark.parametrize("variable", ENVIRONMENT)
@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_variable_is_not_set(variable, text):
    assert from_env({variable: text}) == Options()


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("JAX_UZIP_ENABLED", "maybe", "must be one of 1, true, on, 0"),
        ("JAX_UZIP_MIN_BYTES", "64K", "must be an integer number of bytes, such as 65536"),
        ("JAX_UZIP_MIN_BYTES", "-1", "min_bytes must be 0 or more"),
        ("JAX_UZIP_PACK_BYTES", "1e6", "must be an integer number of bytes, such as 65536"),
        ("JAX_UZIP_PACK_BYTES", "2147483648", "pack_bytes must be at most 2147483647"),
        ("JAX_UZIP_DTYPES", "int8", "dtypes lists int8"),
        ("JAX_UZIP_DTYPES", ",", "dtypes is empty"),
        ("JAX_UZIP_TIERS", ",", "tiers is empty"),
        ("JAX_UZIP_TIERS", "2", "tiers must be rising fractions"),
        ("JAX_UZIP_TIERS", "abc", "must be fractions of the raw size, such as 0.5,0.75"),
        ("JAX_UZIP_TRANSPORT", "fused", "transport must be one of auto, composed"),
    ],
)
def test_environment_errors_name_the_variable_its_text_and_what_is_expected(variable, text, says):
    with pytest.raises(ValueError, match=f"environment variable {variable}='{text}': {says}"):
        from_env({variable: text})


def test_a_misspelt_variable_is_warned_of():
    with pytest.warns(UserWarning, match="JAX_UZIP_MINBYTES, JAX_UZIP_X is none") as warned:
        from_env({"JAX_UZIP_X": "1", "JAX_UZIP_MINBYTES": "3"})
    assert len(warned) == 1
    for variable in ENVIRONMENT:
        assert variable in str(warned[0].message)


@pytest.mark.filterwarnings("error")
def test_other_variables_are_not_warned_of():
    from_env({"JAX_UZIP_NO_SKIP": "1", "JAX_UZIP": "1", "JAX_PLATFORMS": "cpu"})
    from_env(dict.fromkeys(ENVIRONMENT, ""))


def test_the_process_default_is_read_once(monkeypatch):
    first = default()
    monkeypatch.setenv("JAX_UZIP_MIN_BYTES", "3")
    assert default() is first


def test_the_flag_is_off_unless_it_is_set():
    assert not flag_from_env({"JAX_UZIP_ENABLED": "1"})
    assert not flag_from_env({"JAX_UZIP": ""})
    assert [flag_from_env({"JAX_UZIP": text}) for text in ("1", "on", "True", "0", "off")] == [
        *(True, True, True, False, False)
    ]
    with pytest.raises(
        ValueError, match="environment variable JAX_UZIP='2': must be one of 1, true"
    ):
        flag_from_env({"JAX_UZIP": "2"})


def test_where_the_options_come_from():
    environ = {"JAX_UZIP": "1", "JAX_UZIP_MIN_BYTES": "3", "JAX_UZIP_MIN_BITES": "4", "PATH": ""}
    assert {k: v for k, v in sources(environ).items() if v != "default"} == {
        "min_bytes": "JAX_UZIP_MIN_BYTES"
    }
    assert list(sources({})) == list(Options.__dataclass_fields__)
    assert unknown_variables(environ) == ["JAX_UZIP_MIN_BITES"]
