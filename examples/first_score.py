"""A first system: a configuration is slower, the more layouts differ from the compiler's default. Writes its scores.

python examples/first_score.py scores.csv
"""

import sys
from pathlib import Path

import hlorank


def main() -> None:
    """Write the scores of the graphs of layout:cpu:random, split test, to the file that the command names."""
    lines = ["graph,configuration,score"]
    for graph in hlorank.datasets.load("layout/cpu/random").test:
        layouts = graph.configurations()
        scores = (layouts != layouts[0]).sum(axis=(1, 2)).tolist()
        lines += [f"{graph.name},{configuration},{score}" for configuration, score in enumerate(scores)]
    Path(sys.argv[1]).write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
