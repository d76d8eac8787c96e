"""Names of extras in errors."""

import pytest

from hlorank.config import ConfigError
from hlorank.config.extras import named_extra


@pytest.mark.parametrize(
    ("missing", "extra"), [("torch", "rank"), ("mlflow", "pipeline"), ("psutil", "collect"), ("optuna", "sweep")]
)
def test_the_extra_of_a_missing_package_is_named(missing: str, extra: str) -> None:
    with pytest.raises(ConfigError) as error, named_extra("this"):
        raise ModuleNotFoundError(name=missing)
    assert {"this", missing, f"'hlorank[{extra}]'"} <= {*str(error.value).replace(":", "").split()}


@pytest.mark.parametrize("missing", ["torch._C", "mymodule", None])
def test_other_missing_modules_are_errors_of_the_program(missing: str | None) -> None:
    with pytest.raises(ModuleNotFoundError), named_extra("this"):
        raise ModuleNotFoundError(name=missing)
