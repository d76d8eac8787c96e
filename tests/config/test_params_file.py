"""The composition of conf/ into params.yaml, as `dvc exp run` does it."""

import re
from pathlib import Path

import pytest
from dvc.utils.hydra import compose_and_dump

CONF = Path(__file__).parents[2] / "conf"


def test_edits_of_params_yaml_are_named_before_they_are_replaced(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, named = Path("params.yaml"), list[list[str]]()
    for edit, overrides in (
        ("", ["trainer.max_epochs=5", "pipeline.tile=[]"]),
        ("seed: 7", ["trainer.max_epochs=4", "partition=metis"]),
        ("", []),
        ("", []),
    ):
        if edit:
            file.write_text(file.read_text().replace("seed: 0", edit))
        compose_and_dump(file, str(CONF), None, "pipeline", "", overrides)
        named.append(re.findall(r"-S '?([\w.]+=[^ ']+)", capsys.readouterr().err))
    assert named == [[], ["seed=7", "pipeline.tile=[]"], ['partition.algorithm="metis"', "trainer.max_epochs=4"], []]
