import jax.numpy as jnp
import numpy as np
import pytest

from jax_uzip import Options
from jax_uzip._src.options import ENVIRONMENT, default, from_env


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
        ({"dtypes": ["bf16"]}, ValueError, "bf16, which the codec does not compress"),
        ({"tiers": 0.5}, TypeError, "tiers must be a sequence of fractions"),
        ({"tiers": ["a"]}, TypeError, "tiers must be a sequence of fractions"),
        ({"tiers": [0.5, 1.0]}, ValueError, "rising fractions of the raw size between 0 and 1"),
        ({"tiers": [0.5, 0.4]}, ValueError, "tiers must be rising fractions"),
        ({"tiers": [0.5, 0.5]}, ValueError, "tiers must be rising fractions"),
        ({"tiers": [float("nan")]}, ValueError, "tiers must be rising fractions"),
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
            "UNRELATED": "x",
        }
    ) == Options(
        enabled=False,
        min_bytes=1024,
        dtypes=("bfloat16", "float32"),
        pack_bytes=4096,
        tiers=(0.5, 0.7),
    )


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("JAX_UZIP_ENABLED", "maybe"),
        ("JAX_UZIP_MIN_BYTES", "64K"),
        ("JAX_UZIP_MIN_BYTES", "-1"),
        ("JAX_UZIP_DTYPES", "int8"),
        ("JAX_UZIP_TIERS", "2"),
    ],
)
def test_environment_errors_name_the_variable_and_its_text(variable, text):
    with pytest.raises(ValueError, match=f"environment variable {variable}='{text}': "):
        from_env({variable: text})


def test_the_process_default_is_read_once(monkeypatch):
    first = default()
    monkeypatch.setenv("JAX_UZIP_MIN_BYTES", "3")
    assert default() is first
