"""Names of extras in errors."""

import pytest

from hlorank.config import ConfigError
from hlorank.config.extras import named_extra


@pytest.mark.parametrize("missing", ["torch", "mlflow", "psutil", "optuna", "torch._C", "mymodule", None])
def test_the_extra_of_a_missing_package_is_named_and_other_modules_are_errors_of_the_program(
    missing: str | None,
) -> None:
    extra = {"torch": "rank", "mlflow": "pipeline", "psutil": "collect", "optuna": "sweep"}.get(str(missing))
    expected = rf"this needs {missing}: pip install 'hlorank\[{extra}\]'" if extra else None
    with pytest.raises(ConfigError if extra else ModuleNotFoundError, match=expected), named_extra("this"):
        raise ModuleNotFoundError(name=missing)
