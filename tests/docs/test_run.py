"""Pages whose commands are executed, one after the other, in a copy of the repository with tiny settings.

The pages stay as they are: only the values of conf/ are smaller. Commands that need a network, a cluster or
hours are left out here; test_commands.py parses all commands. Notebooks and examples run as well.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from omegaconf import OmegaConf

from hlorank.data.collection import read_graph
from tests.docs.blocks import PAGES, ROOT, Block, blocks
from tests.servers import free_port
from tests.warm import warm_programs

EXECUTED = (
    "README.md",
    "docs/tutorials/first-ranking.md",
    "docs/how-to/rank-configurations.md",
    "docs/how-to/use-your-own-model.md",
    "docs/how-to/register-a-model.md",
    "docs/how-to/serve.md",
    "docs/how-to/autotune.md",
    "docs/how-to/featurize-your-own-hlo.md",
    "docs/how-to/compare-in-mlflow.md",
    "docs/how-to/report.md",
    "docs/how-to/reproduce-a-published-system.md",
    "docs/how-to/search-hyperparameters.md",
    "docs/how-to/sweep-and-experiment.md",
    "docs/how-to/own-project.md",
)
"""In an order in which each page finds the outputs that it needs."""
PORT = "5002"
"""Port of the server in the pages; the test replaces it by a free one."""
ELSEWHERE = re.compile(r"data=tpugraphs|make tpugraphs|pip install|launcher=(submitit_slurm|ray)|compiler_options")
"""Marks of a block that needs a network, a cluster or a TPU, and is left out."""
PARSED = {
    "docs/how-to/cluster.md": "several machines",
    "docs/how-to/dvc-remote.md": "a remote",
    "docs/how-to/measure-your-own-programs.md": "a quiet machine, hours, and a GPU",
    "docs/how-to/tracking-server.md": "a server in /srv; tests/runs/test_postgresql.py runs the part on PostgreSQL",
    "docs/how-to/use-tpugraphs.md": "a network",
    "docs/how-to/use-your-own-npz.md": "data in /data",
    "data/models/README.md": "hours of measuring, and minutes of training",
    "docs/reference/stages.md": "the stages of the pipeline, which README.md runs",
}
"""Reasons why pages are not executed."""
PRELUDE = (Path(__file__).parent / "prelude.sh").read_text(encoding="utf-8")
TINY: dict[str, dict[str, Any]] = {
    "base.yaml": {"pipeline": {"layout": ["layout/cpu/random"], "tile": [], "methods": ["full", "gst"]}},
    "model/sage.yaml": {"width": 8, "blocks": 1},
    "trainer/default.yaml": {
        **dict.fromkeys(("max_epochs", "steps_per_epoch", "graphs_per_step"), 2),
        **dict.fromkeys(("configs_per_step", "validation_configs"), 4),
    },
    "hparams_search/methods.yaml": {"hydra": {"sweeper": {"params": {"method": "gst_efd,full", "seed": 0}}}},
    "hparams_search/random.yaml": {
        "hydra": {"sweeper": {"n_trials": 2, "params": {"model.width": "choice(8, 16)", "model.blocks": "range(1, 3)"}}}
    },
    "hparams_search/trees.yaml": {
        "hydra": {"sweeper": {"n_trials": 2, "params": {"baseline.iterations": "range(2, 5)"}}}
    },
    "experiment/kaggle_6.yaml": {"model": {"width": 8}},
    "experiment/official_tile.yaml": {"model": {"width": 8}},
    "data/synthetic.yaml": {
        "synthetic": {"train": 2, "valid": 1, "test": 1, "min_nodes": 60, "max_nodes": 90, "configurations": 24}
    },
    "experiment/synthetic.yaml": {
        "trainer": {"max_epochs": 1, "steps_per_epoch": 2, "configs_per_step": 4},
        "pipeline": {"layout": ["layout/synthetic/random"], "tile": []},
    },
}
"""Small values for the copy, by file of conf/."""
LACKING = re.compile(
    r"data/sample/layout/(cpu/random/((causal|dlrm|efficientnet|encoder|gnn|gru|lstm|textcnn|vit)\.|.*\.train\.)"
    r"|tpu-v3/random/(?!(autoencoder|causal|experts|gnn|gru|lstm|mlp|textcnn)\.))"
)
"""Graphs that the copy lacks: nine of fifteen families and trainings, and for TPUs all but eight families."""
SETUP = (Path(__file__).parent / "setup.sh").read_text(encoding="utf-8")


class Clone:
    """A copy of the repository with tiny settings."""

    def __init__(self, root: Path) -> None:
        self.root = root
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_dir():  # a link
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).symlink_to((ROOT / name).readlink())
            if (ROOT / name).is_file() and not LACKING.match(name):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        for name, values in TINY.items():  # the line that names their package stays
            text = (root / "conf" / name).read_text(encoding="utf-8")
            package = text.partition("\n")[0] + "\n" if text.startswith("# @package") else ""
            merged = OmegaConf.merge(OmegaConf.create(text), OmegaConf.create(values))
            (root / "conf" / name).write_text(package + OmegaConf.to_yaml(merged), encoding="utf-8")

    def shell(self, script: str) -> None:
        """Run a script as a user of the repository would."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_TRACKING")}
        environment |= {"PATH": f"{self.root}/.venv/bin:{os.environ['PATH']}", "PIP_NO_INDEX": "1"}
        environment |= {"PYTHONPATH": f"{self.root}/site:{self.root}/src"}
        done = subprocess.run(
            ["bash", "-ec", (PRELUDE + script).replace(PORT, str(free_port()))],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    if sys.prefix == sys.base_prefix:
        pytest.skip("needs a virtual environment, which the copy then has as its .venv")
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    made = Clone(tmp_path_factory.mktemp("clone"))
    with warm_programs(made.root / ".venv" / "bin", made.root / "src"):
        made.shell(SETUP)
        yield made


def script(block: Block) -> str:
    """Return the script of a block; nothing if it needs a network or a cluster."""
    if ELSEWHERE.search(block.text) or not (block.shell or block.language == "python"):
        return ""
    return block.text if block.shell else f"python - <<'END'\n{block.text}END\n"


@pytest.mark.slow
@pytest.mark.parametrize("page", EXECUTED)
def test_a_page_runs(page: str, clone: Clone) -> None:
    clone.shell("".join(map(script, blocks(page))))


@pytest.mark.slow
def test_a_command_that_fails_is_noticed(clone: Clone) -> None:
    for command in ("hlorank rank --model nowhere nothing.npz", "python -m hlorank.stages.train a=1"):
        with pytest.raises(AssertionError):
            clone.shell(command)


def apply(page: str, root: Path) -> None:
    """Write the files of the code blocks of a page into a folder, and change them as its diffs say."""
    for block in blocks(page):
        first, _, text = block.text.partition("\n")
        if not first.strip().startswith("# "):
            continue
        path = root / first.strip().removeprefix("# ")
        if block.language == "diff":
            content, before = path.read_text(encoding="utf-8"), " "
            for line in text.splitlines(keepends=True):
                if line.startswith("+"):
                    content = content.replace(before[1:], before[1:] + line[1:])
                before = line
                assert content.count(line[1:]) == 1, line
            path.write_text(content, encoding="utf-8")
        else:
            assert not path.exists(), path
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")


@pytest.mark.slow
def test_a_package_of_its_own_trains_and_ranks(clone: Clone) -> None:
    """The how-to of extensions is followed to the letter, with the package installed; then its name is not given."""
    page = "docs/how-to/extend.md"
    apply(page, clone.root)
    text = "".join(block.text for block in blocks(page) if block.language == "bash")
    refused = f"unset HLORANK_PLUGINS\n{text.splitlines()[-1]} 2> refused || [ $? = 2 ]"
    clone.shell(f"{text}{refused}\ngrep -q HLORANK_PLUGINS=my_package refused")
    spec = json.loads((clone.root / "models/layout/cpu/random/gst_f/spec.json").read_text())
    assert list(spec["plugins"]) == ["my_package"]
    assert spec["model"]["block"] == ["layer_norm", "my_conv", "gelu", "residual"]
    assert (clone.root / "reports/layout/cpu/random/gst_f/metrics.json").is_file()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")  # plt.show() without a screen
@pytest.mark.parametrize("notebook", sorted((ROOT / "docs").rglob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(notebook.parent)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    matplotlib.use("Agg")
    names: dict[str, Any] = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
            printed = capsys.readouterr().out
            shown = [line for output in cell["outputs"] for line in output.get("text", [])]
            assert len(printed.splitlines()) == len(shown), printed  # scores may differ in the last digits
            # Words and whole numbers do not differ, except for the ranking.
            pattern = r"[a-z_.]{3,}|\d+ (?=nodes|configurations)"
            assert re.findall(pattern, printed) == re.findall(pattern, "".join(shown))


def test_the_example_writes_a_valid_npz(cwd: Path) -> None:
    texts = [block.text for block in blocks("docs/how-to/use-your-own-npz.md") if block.language == "python"]
    (example,) = [text for text in texts if "write_graph" in text]
    exec(example, {})
    (path,) = cwd.rglob("*.npz")
    assert path.relative_to(cwd) == Path("mine/layout/own/random/product.npz")
    measured = read_graph(path, "layout")
    assert measured.graph.edge_index.tolist() == [[2, 0], [2, 1]]
    assert measured.measurements.runtime.tolist() == [700, 400]


def test_every_page_with_commands_is_executed_or_says_why_not() -> None:
    assert {*EXECUTED, *PARSED} == {name for name in PAGES if any(block.shell for block in blocks(name))}
