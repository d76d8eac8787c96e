"""Model families, folds, and the split file."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.config import ConfigError
from hlorank.data.collection import Collection
from hlorank.data.splits import family, make_folds, split_graphs
from hlorank.files import DataError

COLLECTION = Collection.parse("layout:own:random")
GRAPHS = ["a.2x2.fp32", "a.4x4.bf16", "b", "c"]
FAMILIES = {name: family(name) for name in GRAPHS}


NAMES = """
unet3d: unet3d unet_3d.4x4.bf16 unet_3d.8x16.fp32 UNet-3D.2x2x4.fp16
resnet50: resnet50.2x2.fp32 resnet50.4x4.fp16 resnet50
retinanet: retinanet.2x2.fp32_-342c949e14733d96 retinanet.4x4.bf16_1c949e14733d96 retinanet.8x8
inceptionv3: inception_v3_batch_128_train inception_v3_batch_128_train_426e203f19335d17
alexnet: alexnet_train_batch_32 alexnet_eval_batch_1 alexnet_bs64 alexnet.training
mlperfbert: mlperf_bert_batch_24_2x2 mlperf_bert_1_shard_batch_8 mlperf_bert.inference
tf2bertpretrain: tf2_bert_pretrain_dynamic_batch_size tf2_bert_pretrain_batch_size_8_int8
resnetv150official: resnet_v1_50_official_batch_128_bf16
bertenl10h768a12: bert_en_L-10_H-768_A-12_batch_size_32_test bert_en_L-10_H-768_A-12_batch_size_16_train
bertenl12h768a12: bert_en_L-12_H-768_A-12_batch_size_64_train
23559853d9702baaaacbb0c83fd32266: 23559853d9702baaaacbb0c83fd32266
batch_size_8: batch_size_8
batchnorm: batch_norm
bertpretraining: bert_pretraining.4x4.fp16
"""


@pytest.mark.parametrize("line", NAMES.strip().splitlines())
def test_the_family_of_a_name(line: str) -> None:
    expected, names = line.split(": ")
    assert {family(name) for name in names.split()} == {expected}


@settings(deadline=None)  # the first call imports scikit-learn
@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 40)), min_size=1, unique=True), st.integers(3, 5))
def test_folds_keep_families_together_and_are_balanced(pairs: list[tuple[str, int]], folds: int) -> None:
    graphs = [f"{model}_batch_{size}" for model, size in pairs]
    families = {name: family(name) for name in graphs}
    sizes = Counter(model for model, _ in pairs)
    if len(sizes) < folds:
        with pytest.raises(ConfigError, match=rf"folds={folds}: .*\b{len(sizes)}\b"):
            make_folds(families, folds)
        return
    fold_of = make_folds(families, folds)
    assert fold_of == make_folds(dict(reversed(families.items())), folds)
    assert fold_of.keys() == set(graphs)
    assert set(fold_of.values()) == set(range(folds))
    assert len({(name[0], fold) for name, fold in fold_of.items()}) == len(sizes)
    filled = Counter(fold_of.values())
    # Families are dealt from the largest to the least filled fold: no fold exceeds another by more than one family.
    assert max(filled.values()) - min(filled.values()) <= max(sizes.values())


def test_a_split_file_is_written_once_and_then_read(tmp_path: Path) -> None:
    path = tmp_path / "splits" / "folds.json"
    first = split_graphs(COLLECTION, FAMILIES, path, folds=3, fold=1)
    fold_of = json.loads(path.read_text())["collections"]["layout:own:random"]
    assert json.loads(path.read_text()) == document(fold_of)
    assert first == {name: ["train", "valid", "test"][fold_of[name]] for name in GRAPHS}
    assert fold_of["a.2x2.fp32"] == fold_of["a.4x4.bf16"]
    written = path.read_bytes()
    assert split_graphs(COLLECTION, FAMILIES, path, folds=3, fold=1) == first
    rolled = split_graphs(COLLECTION, FAMILIES, path, folds=3, fold=2)
    assert rolled == {name: ["test", "train", "valid"][fold_of[name]] for name in GRAPHS}
    assert path.read_bytes() == written


def test_folds_of_families_hold_for_every_collection_without_folds_of_its_graphs(tmp_path: Path) -> None:
    path = tmp_path / "folds.json"
    content = document({"x": 0, "y": 1}) | {"families": {"a": 1, "b": 0, "c": 2, "of no graph": 0}}
    path.write_text(json.dumps(content))
    tile = Collection.parse("tile:own")
    splits = split_graphs(tile, FAMILIES, path, folds=3, fold=0)
    assert splits == {"a.2x2.fp32": "test", "a.4x4.bf16": "test", "b": "valid", "c": "train"}
    kernels = {"k_1": "a", "k_2": "c", "k_3": "a"}
    splits = split_graphs(tile, kernels, path, folds=3, fold=1)
    assert splits == {"k_1": "valid", "k_2": "test", "k_3": "valid"}
    assert split_graphs(COLLECTION, dict.fromkeys("xy", "c"), path, folds=3, fold=0) == {"x": "valid", "y": "test"}
    assert json.loads(path.read_text()) == content


def document(fold_of: Any, folds: Any = 3) -> dict[str, Any]:
    return {"folds": folds, "collections": {"layout:own:random": fold_of}}


GOOD = {"a.2x2.fp32": 0, "a.4x4.bf16": 0, "b": 1, "c": 2}


@pytest.mark.parametrize(
    ("content", "key", "named"),
    [
        ({"folds": 3, "graphs": {}}, "content", "graphs"),
        ({"folds": 3, "collections": []}, "content", "collections"),
        ({"folds": 3, "families": {"a": 0, "b": "1"}}, "content", "families.b"),
        (document(GOOD | {"b": -1}), "content", "layout:own:random.b"),
        (document(GOOD | {"c": True}), "content", "layout:own:random.c"),
        (document(GOOD | {"c": 1.0}), "content", "layout:own:random.c"),
        (document(GOOD, folds=5), "folds", "found 5"),
        ({"folds": 3, "families": {"a": 0, "b": 1, "c": 3}}, "layout:own:random", "3 for c"),
        (document(GOOD | {"b": 3}), "layout:own:random", "3 for b"),
        ({"folds": 3, "families": {"b": 1, "d": 2}}, "families", "none for a, c"),
        (document(dict.fromkeys([*GRAPHS[:3], "d"], 0)), "layout:own:random", "missing graphs: c; unknown"),
    ],
)
def test_a_split_file_that_does_not_fit_is_named(tmp_path: Path, content: dict[str, Any], key: str, named: str) -> None:
    path = tmp_path / "folds.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError) as caught:
        split_graphs(COLLECTION, FAMILIES, path, folds=3, fold=0)
    assert (caught.value.file, caught.value.key) == (path, key)
    assert named in str(caught.value)
    assert json.loads(path.read_text()) == content
