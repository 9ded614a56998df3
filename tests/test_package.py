"""What would be published: the packages hold all that is needed and nothing else, and work where they are installed."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml

import joformer

ROOT = Path(__file__).parents[1]
VERSION = joformer.__version__

# Names of packages that are imported by another.
IMPORTED_AS = {"pillow": "PIL", "scikit-learn": "sklearn"}


def run(*words, **more):
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, timeout=300, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Both packages, the wheel made from the sdist, by the tools of the environment: without a network."""
    place = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", place, ROOT)
    sdist, wheel = place / f"joformer-{VERSION}.tar.gz", place / f"joformer-{VERSION}-py3-none-any.whl"
    assert {*place.iterdir()} == {sdist, wheel}
    return sdist, wheel


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    place = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--no-compile"]
    run(*pip, "--no-deps", "--target", place, built[1])
    return place


@pytest.fixture
def python(installed, tmp_path):
    """Python in an empty folder, where joformer is what was installed."""

    def command(*words):
        there = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
        return run(sys.executable, *words, cwd=tmp_path, env=there)

    return command


def test_the_wheel_holds_the_library_and_nothing_else(built):
    source = ROOT / "src" / "joformer"
    wanted = {f"joformer/{path.relative_to(source).as_posix()}" for path in source.rglob("*") if path.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name}
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
    about = f"joformer-{VERSION}.dist-info"
    assert {name for name in names if not name.startswith(f"{about}/")} == wanted
    assert {"joformer/py.typed", "joformer/experiments/report/page.html"} <= wanted
    assert {f"{about}/licenses/{name}" for name in ("LICENSE", "NOTICE")} <= names
    with tarfile.open(built[0]) as sdist:
        tops = {name.split("/")[1] for name in sdist.getnames() if "/" in name}
    assert tops >= {"src", "README.md", "LICENSE", "NOTICE", "CITATION.cff", "pyproject.toml"}
    assert not tops & {"tests", "results", "docs", ".venv"}


def test_the_wheel_says_what_it_needs(built):
    with zipfile.ZipFile(built[1]) as wheel:
        about = message_from_bytes(wheel.read(f"joformer-{VERSION}.dist-info/METADATA"))
        scripts = wheel.read(f"joformer-{VERSION}.dist-info/entry_points.txt").decode()
    needs = [need for need in about.get_all("Requires-Dist") if "extra ==" not in need]
    assert sorted(re.match(r"[\w-]+", need)[0] for need in needs) == ["jaxtyping", "torch"]
    extras = {"audio", "dev", "docs", "integrations", "ray", "slurm", "train", "video"}
    assert {*about.get_all("Provides-Extra")} == extras
    assert about["License-Expression"] == "Apache-2.0"
    assert not [one for one in about.get_all("Classifier") if one.startswith("License")]
    assert "joformer = joformer.cli:main" in scripts
    # Where nothing lies beside the README, as on a package index, no link or picture of it may be relative.
    shown = about.get_payload()
    assert "![" in shown
    assert all(target.startswith(("https://", "#")) for target in re.findall(r"\]\(([^)]+)\)", shown))
    # Placeholders until there is a home: no host that exists is named by mistake.
    assert {re.search("https://([^/]*)/", url)[1] for url in about.get_all("Project-URL")} == {"joformer.example"}


def test_what_is_installed_runs_the_readme_with_torch_and_jaxtyping_alone(python, installed):
    (ten_lines, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    extras = re.findall(r'^    "([\w-]+)[\[><=]', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    names = sorted({IMPORTED_AS.get(name, name.replace("-", "_")) for name in extras} - {"joformer"})
    assert {"tyro", "safetensors", "datasets", "PIL", "transformers"} <= {*names}
    code = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
{ten_lines}
import joformer
print([joformer.__file__, joformer.__version__, tuple(y.shape)])
"""
    where, version, shape = ast.literal_eval(python("-c", code))
    assert Path(where) == installed / "joformer" / "__init__.py"
    assert (version, shape) == (VERSION, (8, 197, 384))


def test_the_command_that_is_installed_says_its_version(python):
    assert python("-m", "joformer.cli", "--version") == f"joformer {VERSION}\n"


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["cff-version"], cited["type"], cited["version"]) == ("1.2.0", "software", VERSION)
    assert f"## {VERSION} ({cited['date-released']})" in (ROOT / "CHANGELOG.md").read_text()
    assert cited["license"] == "Apache-2.0"
    (paper,) = cited["references"]
    assert paper["title"] in " ".join((ROOT / "README.md").read_text().split())
    assert paper["authors"] == [{"family-names": "Godavarti", "given-names": "Mahesh"}]


def test_every_tool_before_a_commit_is_one_of_lint_or_types():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    ((where, hooks),) = ((repo["repo"], repo["hooks"]) for repo in config["repos"])
    assert where == "local"
    dev = (ROOT / "pyproject.toml").read_text()
    for hook in hooks:
        assert {"id", "name", "entry", "language"} <= set(hook)
        tool = hook["entry"].split()[0].removeprefix(".venv/bin/")
        assert re.search(rf'^    "{tool}[\[>]', dev, re.MULTILINE), tool
        assert f"$(BIN)/{tool}" in (ROOT / "Makefile").read_text()


# What a make or a git around the tests would tell theirs.
OUTER = ("GIT_", "MAKE", "MFLAGS")


@pytest.fixture
def tree(tmp_path):
    """A repository that could be released, whose tools only say that they were called."""
    if not (shutil.which("git") and shutil.which("make")):
        pytest.skip("no git or no make here")
    for name in ("Makefile", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "constraints.txt", "SECURITY.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "src" / "joformer").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "joformer" / "__init__.py", tmp_path / "src" / "joformer")
    (tmp_path / ".gitignore").write_text("bin/\nstamp\n")
    (tmp_path / "bin").mkdir()
    for tool in ("python", "twine"):
        (tmp_path / "bin" / tool).write_text(f'#!/bin/sh\necho {tool} "$@"\n')
        (tmp_path / "bin" / tool).chmod(0o755)
    (tmp_path / "stamp").touch()
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "all")
    return tmp_path


def nobody():
    who = {f"GIT_{role}_{what}": "nobody" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return {name: value for name, value in os.environ.items() if not name.startswith(OUTER)} | who


def git(place, *words):
    return run("git", *words, cwd=place, env=nobody())


def release(place):
    words = ["make", "release", "INSTALLED=stamp", "BIN=bin", "MAKE=echo make"]
    return subprocess.run(words, cwd=place, env=nobody(), capture_output=True, text=True, check=False)


def test_a_release_is_tested_built_and_tagged_once(tree):
    done = release(tree)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    steps = ["make test", "python -m build --no-isolation", "twine check --strict", "these addresses are placeholders"]
    places = [said.index(step) for step in [*steps, "nothing was pushed or uploaded"]]
    assert places == sorted(places)
    assert git(tree, "tag") == f"v{VERSION}\n"
    again = release(tree)
    assert again.returncode != 0
    assert again.stdout == f"release: v{VERSION} is tagged already: raise the version\n"


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        ("SECURITY.md", "# Security", "# Safety", "release: the tree is not clean: commit first\n"),
        (
            "CHANGELOG.md",
            f"## {VERSION} (",
            "## 9.9.9 (",
            f'release: CHANGELOG.md has no section "## {VERSION} (DATE)"',
        ),
        ("CITATION.cff", f"version: {VERSION}", "version: 9.9.9", f"release: CITATION.cff is not of {VERSION}\n"),
    ],
)
def test_what_is_not_ready_is_not_released(tree, file, before, after, said):
    place = tree / file
    assert before in place.read_text()
    place.write_text(place.read_text().replace(before, after, 1))
    if "clean" not in said:
        git(tree, "commit", "-qam", "changed")
    done = release(tree)
    assert done.returncode != 0
    assert done.stdout.startswith(said)
    assert git(tree, "tag") == ""
