"""Builds src/hlorank/evaluation/report/vega.html from the npm packages of package-lock.json; needs npm (`make vega`).

The page is the template of `dvc plots show`, and holds the only copy of Vega: reports take it from there. The lock file
pins versions and hashes and names no registry, so npm takes the packages from the one that it is set up for. Equal
packages give equal bytes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parents[1] / "src/hlorank/evaluation/report"
BUNDLES = {name: f"{name}/build/{name}.min.js" for name in ("vega", "vega-lite", "vega-embed")}  # in order of need
# Of command line tools and type declarations; no part of the bundles.
LEFT_OUT = {"commander", "iconv-lite", "rw", "vega-typings", "yargs"}


def install(folder: Path) -> Path:
    """Installs what the lock file names, without running its scripts, and returns the folder of the packages."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, folder)
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("npm is missing: install Node.js")
    subprocess.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True)  # noqa: S603 (nothing is given from outside)
    return folder / "node_modules"


def bundled(modules: Path) -> Iterator[str]:
    """The names of all packages whose code is in the bundles."""
    seen, waiting = set(LEFT_OUT), list(BUNDLES)
    while waiting:
        name = waiting.pop()
        if name in seen or name.startswith("@types/"):
            continue
        seen.add(name)
        yield name
        package = json.loads((modules / name / "package.json").read_text(encoding="utf-8"))
        waiting += package.get("dependencies", {})


def licences(modules: Path) -> str:
    """The licences of these packages, each text once."""
    packages: dict[str, list[str]] = {}
    for name in sorted(bundled(modules)):
        (path,) = modules.joinpath(name).glob("LICEN[CS]E*")
        text = "\n".join(line.rstrip() for line in path.read_text(encoding="utf-8").strip().splitlines())
        version = json.loads((modules / name / "package.json").read_text(encoding="utf-8"))["version"]
        packages.setdefault(text, []).append(f"{name} {version}")
    return "\n\n".join(f"{', '.join(names)}\n\n{text}" for text, names in packages.items()) + "\n"


def script(path: Path) -> str:
    """One bundle, fit to stand in a page.

    Raises:
        ValueError: it holds what would end the script, or what DVC replaces.
    """
    text = re.sub(r"\n//# sourceMappingURL=.*", "", path.read_text(encoding="utf-8")).strip()
    if found := re.search(r"</script|<!--|\{(?:scripts|plot_divs|refresh_tag)\}", text, re.IGNORECASE):
        raise ValueError(f"{path}: expected no {found[0]!r} in it")
    return text


def main() -> None:
    """Writes vega.html and, beside it, the licences that it also holds."""
    with tempfile.TemporaryDirectory() as folder:
        modules = install(Path(folder))
        notice = licences(modules)
        assert "*/" not in notice
        scripts = [f"/*!\n{notice}*/", *(script(modules / path) for path in BUNDLES.values())]
        page = (HERE / "page.html").read_text(encoding="utf-8").replace("<VEGA>", "\n;\n".join(scripts))
        (TARGET / "vega.html").write_text(page, encoding="utf-8")
        (TARGET / "vega.LICENSES.txt").write_text(notice, encoding="utf-8")


if __name__ == "__main__":
    main()
