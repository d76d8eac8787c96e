"""ORIGINS: the chosen origin fetches with its settings, and a new origin is one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from hlorank.config import ConfigError, DataConfig, Section
from hlorank.data.collection import Collection
from hlorank.fetch.origins import ORIGINS, Origin, fetch

CONF = Path(__file__).parents[2] / "conf"
COLLECTION = Collection.parse("tile:own")


class NoteConfig(Section):
    text: str
    times: int


def fetch_note(collection: Collection, config: NoteConfig, output: Path) -> None:
    output.mkdir(parents=True)
    (output / "note").write_text(f"{collection} {config.text * config.times}")


def test_every_file_of_conf_is_an_origin() -> None:
    assert {OmegaConf.select(OmegaConf.load(path), "origin") for path in (CONF / "data").glob("*.yaml")} == {*ORIGINS}


def test_the_chosen_origin_fetches_with_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ORIGINS, "note", Origin(NoteConfig, fetch_note))
    for data, key in (
        ({"origin": "server"}, r"data\.origin=server: .*\bnote\b"),
        ({"origin": "note"}, r"data\.note\.text: "),
        ({"origin": "note", "note": {"text": "a", "times": "x"}}, r"data\.note\.times=x: "),
    ):
        with pytest.raises(ConfigError, match=f"^{key}"):
            fetch(COLLECTION, DataConfig.model_validate(data), tmp_path / "raw")
    assert not list(tmp_path.iterdir())
    data = {"origin": "note", "note": {"text": "ab", "times": 2}}
    fetch(COLLECTION, DataConfig.model_validate(data), tmp_path / "raw")
    assert (tmp_path / "raw" / "note").read_text() == "tile:own abab"
