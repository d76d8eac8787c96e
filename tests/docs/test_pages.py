"""The pages agree with the code, as far as that can be tested: links, names, and tables."""

import ast
import importlib
import re
import tomllib
from typing import Any

import numpy as np
import pytest

from hlorank.hlo.layout_space import SEARCHES
from hlorank.models.baselines.baseline import BASELINES
from hlorank.models.compression.build_plan import quotient_graph
from hlorank.models.compression.colouring import Colouring
from hlorank.models.compression.declarations import EdgeKind, Norm
from hlorank.models.compression.segment import Edges
from hlorank.models.layers.registry import LAYERS, RESIDUAL
from hlorank.training.methods import METHODS
from scripts.reference import GENERATED, keys, rewritten
from tests.docs.blocks import PAGES, ROOT, blocks
from tests.docs.test_commands import TARGETS
from tests.graphs import make_model

TEXTS = {name: page.read_text(encoding="utf-8") for name, page in PAGES.items()}
TEXTS["CONTRIBUTING.md"] = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

every_page = pytest.mark.parametrize("page", TEXTS)


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    headings = re.findall(r"^#+ +(.+)$", _CODE.sub("", TEXTS[page]), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_relative_links_resolve(page: str) -> None:
    for link in _LINK.findall(_CODE.sub("", TEXTS[page])):
        path, _, anchor = link.partition("#")
        if "://" not in link:
            target = (ROOT / page).parent.joinpath(path).resolve() if path else ROOT / page
            assert target.exists(), link
            assert not anchor or anchor in anchors(str(target.relative_to(ROOT))), link


def test_every_page_is_in_the_index() -> None:
    linked = {(ROOT / "docs" / link).resolve() for link in _LINK.findall(TEXTS["docs/README.md"])}
    assert {ROOT / name for name in TEXTS if not name.endswith("README.md")} <= linked


@pytest.fixture(scope="module")
def known() -> set[str]:
    """All keys of the configuration, as the reference documents them."""
    return {key for table in keys().values() for key in re.findall(r"^\| `([\w.]+)`", table, re.MULTILINE)}


@every_page
def test_what_commands_name_exists(page: str, known: set[str]) -> None:
    """In blocks and in the text: targets of make, modules, files of groups, and keys of the configuration."""
    text = "\n".join([*_SHELL.findall(TEXTS[page]), *_INLINE.findall(_CODE.sub("", TEXTS[page]))])
    assert {*re.findall(r"(?:^|&& )make ([a-z-]+)", text, re.MULTILINE)} <= TARGETS
    for module in re.findall(r"python (?:-P )?-m (hlorank[\w.]*)", text.replace("$stage", "fetch")):
        assert importlib.util.find_spec(module.rstrip(".")) is not None, module
    groups = "|".join(path.name for path in (ROOT / "conf").iterdir() if path.is_dir())
    for group, choices in re.findall(rf"(?:^|[ '])({groups})=([\w,]+)", text, re.MULTILINE):
        for choice in choices.split(","):
            folders = ROOT / "conf", ROOT / "examples/reproductions/reproductions/conf"
            assert any((folder / group / f"{choice}.yaml").is_file() for folder in folders), f"{group}={choice}"
    overrides = re.findall(r"(?:^|[ '])([a-z_]+(?:\.[a-z_]+)+)=", text, re.MULTILINE)
    assert {key for key in overrides if not key.startswith(("hydra.", "vm."))} <= known  # vm.: of sysctl


@pytest.mark.parametrize("page", PAGES)
def test_python_imports_what_there_is(page: str) -> None:
    for block in blocks(page):
        if block.language == "python" and not re.match(r"# (src|tests)/", block.text):
            for node in ast.walk(ast.parse(block.text)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hlorank"):
                    module = importlib.import_module(node.module or "")
                    assert all(hasattr(module, name.name) for name in node.names)


# The collection of models is measured in the background: new graphs come before the table.
@pytest.mark.parametrize("name", sorted(GENERATED.keys() - {"data/models/README.md"}))
def test_tables_are_those_of_the_code(name: str) -> None:
    assert rewritten(name, ROOT / name) == TEXTS[name], "run `make reference`"


def test_methods_and_layers_are_documented() -> None:
    gst, model = TEXTS["docs/explanation/gst.md"], make_model()
    assert re.findall(r"^\| `(\w+)` \| (?:one segment|segments)", gst, re.MULTILINE) == list(METHODS)
    assert re.findall(r"^\| `(\w+)` \| no segments", gst, re.MULTILINE) == list(BASELINES)
    rows = re.findall(r"^\| [^|]*\(`(\w+)`\) \| ([^|]*) \|", gst, re.MULTILINE)
    mixing = {name: kind.make(model.config, model.config.width).mixing.value for name, kind in LAYERS.items()}
    assert {name: kind for kind, names in rows for name in _INLINE.findall(names)} == mixing
    section = TEXTS["docs/reference/layers.md"].split("\n## ")[1]
    rows = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    assert sorted(_INLINE.findall(" ".join(rows))) == sorted([*LAYERS, RESIDUAL])


def test_searches_and_extension_points_are_documented() -> None:
    architecture, extend = TEXTS["docs/explanation/architecture.md"], TEXTS["docs/how-to/extend.md"]
    for page in (architecture, TEXTS["docs/how-to/use-your-own-npz.md"]):
        (clause, *_) = re.findall(r"`default`[^.;]*", page)
        assert {*re.findall(r"`(\w+)`", clause)} == SEARCHES.keys()
    modules = [path.read_text(encoding="utf-8") for path in (ROOT / "src/hlorank").rglob("*.py")]
    points = {*re.findall(r"^([A-Z]+): ExtensionPoint", "".join(modules), re.MULTILINE)}
    section = architecture.split("\n## Extension points\n")[1].split("\n## ")[0]
    assert {*re.findall(r"\b[A-Z]{6,}\b", section)} == points
    assert {*re.findall(r"^\| [^|]* \| `([A-Z]+)` \|", extend, re.MULTILINE)} == points


def test_the_example_of_colour_refinement_is_that_of_the_code() -> None:
    consumer_and_operand = np.array([[1, 0], [1, 2], [1, 3]])
    kind = EdgeKind(Norm.SUM, "separate")
    edges = Edges(consumer_and_operand, nodes=4, configurable=1).neighbourhood(kind)
    initial = Colouring.of_keys(np.array([["dot, A", "dot, B"]]), np.array(["add", "parameter", "parameter"]))
    first = initial.refine(edges, prefix=2)
    found = np.hstack([colours.colour_of for colours in (initial, first, first.refine(edges, prefix=4))])
    rows = re.findall(r"^\| \d, \w+ \|(.*)\|$", TEXTS["docs/explanation/gst.md"], re.MULTILINE)
    assert found.tolist() == [[int(cell) for cell in row.split("|")] for row in rows]
    quotient: Any = quotient_graph(initial, first, edges, kind)
    start, stop = quotient.matrix.row_starts[2:4]  # of the add under A, which receives from itself first
    assert (quotient.matrix.column[start:stop] // kind.types).tolist() == [2, 0, 3, 3]


def test_every_dependency_is_documented() -> None:
    project: Any = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    words = set(re.findall(r"[\w-]+", " ".join(re.findall(r"^\|.*", TEXTS["docs/dependencies.md"], re.MULTILINE))))
    assert {re.split(r"[<>=\[]", name)[0] for group in groups for name in group} <= words
