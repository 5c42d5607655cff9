"""The package as users get it: a wheel, built from a checkout whose folder cannot be a Python name.

Nothing here needs the network: setuptools is part of requirements.lock, and dependencies are not installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
FOLDERS = ("engine", "coordinator", "actors", "jobs")
LIBRARY = Path("engine/kernels/_native.so")
OURS = Path(sysconfig.get_path("purelib"))
"""Where setuptools is, for an environment that has none."""
FILES = ("pyproject.toml", "setup.py", "noxfile.py", "__init__.py", "py.typed", "README.md", "LICENSE")

LIST_HEAVY_MODULES = """
import importlib, sys
import penstock
for name in sys.argv[1:]:
    importlib.import_module(name)
print(penstock.__file__)
print(sorted(sys.modules.keys() & {"ray", "raydp", "pyspark"}))
"""


def run(*command: str | Path, folder: Path, path: Path | None = None) -> str:
    """The output of a command that must succeed, run with nothing but ``path`` on PYTHONPATH."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PIP_NO_INDEX": "1"}
    if path:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def packages_on_disk() -> set[str]:
    folders = (path.parent for top in FOLDERS for path in (CHECKOUT / top).rglob("__init__.py"))
    return {"penstock", *(".".join(("penstock", *folder.relative_to(CHECKOUT).parts)) for folder in folders)}


def modules_on_disk(*tops: str) -> list[str]:
    paths = (path for top in tops for path in (CHECKOUT / top).rglob("*.py") if path.stem != "__init__")
    return sorted(".".join(("penstock", *path.relative_to(CHECKOUT).with_suffix("").parts)) for path in paths)


def copied(folder: Path) -> Path:
    """A copy of the checkout, so that this one gets no build folder and old ones leave nothing in what is built."""
    copy = folder / "penstock-main"
    copy.mkdir()
    for name in FILES:
        if (CHECKOUT / name).exists():
            shutil.copy(CHECKOUT / name, copy)
    for name in (*FOLDERS, "tests"):
        shutil.copytree(CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", LIBRARY.name))
    return copy


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packaging")
    command = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, copied(folder))
    run(sys.executable, *command, folder=folder)
    return next(folder.glob("penstock-*.whl"))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout that is installed in an environment of its own, as ``pip install -e .`` does."""
    folder = tmp_path_factory.mktemp("editable")
    copy = copied(folder)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
    install = ("install", "--no-deps", "--no-build-isolation", "--editable", copy)
    run(sys.executable, "-m", "pip", "--python", folder / "venv/bin/python", *install, folder=folder, path=OURS)
    return copy


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A folder with the wheel's content, put there by pip."""
    target = wheel.parent / "site"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", target, wheel, folder=wheel.parent)
    return target


def test_pyproject_lists_exactly_the_packages_on_disk() -> None:
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = settings["tool"]["setuptools"]["packages"]
    assert len(listed) == len(set(listed))
    assert set(listed) == packages_on_disk()


def test_wheel_holds_every_module_and_the_type_marker_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {path.relative_to(CHECKOUT) for top in FOLDERS for path in (CHECKOUT / top).rglob("*.py")}
    expected = {Path("__init__.py"), Path("py.typed"), LIBRARY, *sources}
    assert names == {(Path("penstock") / path).as_posix() for path in expected}


def test_wheel_is_of_a_platform_and_of_every_python(wheel: Path) -> None:
    assert wheel.name.endswith(f"-py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}.whl")


def test_wheel_without_a_compiler_works_by_the_twins(tmp_path: Path) -> None:
    environment = {"PATH": "/nowhere", "CC": "no-such-compiler"}
    code = "import setup, sys, pathlib; sys.exit(setup.compile_kernels(pathlib.Path(sys.argv[1])) is not None)"
    done = subprocess.run(
        [sys.executable, "-c", f"import setuptools; setuptools.setup = lambda **_: None; {code}", tmp_path],
        cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "built without compiled kernels" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_wheel_declares_command_bridge_and_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        information = {
            name.split("/", 1)[1]: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name
        }
    assert "penstock = penstock.jobs.cli:main" in information["entry_points.txt"]
    assert "ray = penstock.actors.spark.ray_datasets:open_dataset" in information["entry_points.txt"]
    assert "spark = penstock.actors.spark_bridge:open_frame" in information["entry_points.txt"]
    assert "License-Expression: Apache-2.0" in information["METADATA"]
    assert "Apache License" in information["licenses/LICENSE"]


def test_package_installed_from_wheel_is_imported_from_elsewhere(installed: Path, tmp_path: Path) -> None:
    output = run(sys.executable, "-c", LIST_HEAVY_MODULES, folder=tmp_path, path=installed)
    assert output.splitlines() == [str(installed / "penstock" / "__init__.py"), "[]"]


def test_engine_coordinator_and_jobs_load_neither_ray_nor_spark(installed: Path, tmp_path: Path) -> None:
    modules = [name for name in modules_on_disk("engine", "coordinator", "jobs") if not name.endswith("__main__")]
    output = run(sys.executable, "-c", LIST_HEAVY_MODULES, *modules, folder=tmp_path, path=installed)
    assert len(modules) > 10
    assert output.splitlines()[-1] == "[]"


def test_an_editable_install_is_files_that_type_checkers_and_kernels_find(checkout: Path, tmp_path: Path) -> None:
    """They search ``sys.path`` for files, and know no finders (PEP 561)."""
    python = checkout.parent / "venv/bin/python"
    paths = run(python, "-c", "import sys; print(*sys.path, sep='\\n')", folder=tmp_path).splitlines()
    [found] = [Path(path, "penstock") for path in paths if Path(path, "penstock").is_dir()]
    sources = {path.relative_to(checkout) for top in FOLDERS for path in (checkout / top).rglob("*.py")}
    expected = {Path("__init__.py"), Path("py.typed"), LIBRARY, *sources}
    assert {path.relative_to(found) for path in found.rglob("*") if path.is_file()} == expected
    assert {(found / path).resolve() for path in expected} == {checkout / path for path in expected}


def test_the_projects_own_environment_sees_new_files_at_once() -> None:
    done = subprocess.run(
        ["make", "-n", "-W", "pyproject.toml", "venv"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    [line] = [line for line in done.stdout.splitlines() if " -e ." in line]
    assert "--config-settings editable_mode=lenient" in line


def test_lock_names_no_index_no_folder_and_only_exact_versions() -> None:
    lines = (CHECKOUT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.lstrip().startswith("#")]
    assert len(pins) > 50
    assert [line for line in pins if line.count("==") != 1 or "/" in line or line.startswith("-")] == []


def test_wheels_for_other_machines_are_those_that_setup_can_compile_for() -> None:
    """`make wheels` has a rule, and names the platforms of setup.py."""
    done = subprocess.run(
        ["make", "-n", "wheels", "VENV=.venv"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    targets = re.search(r"TARGETS = \{(.*?)\n\}", (CHECKOUT / "setup.py").read_text(encoding="utf-8"), re.DOTALL)
    assert targets is not None
    found = re.search(r"for platform in (.*?); do", done.stdout)
    assert found is not None, done.stdout
    assert found[1].split() == re.findall(r'^    "(\w+)":', targets[1], re.MULTILINE)
