"""The versions that the package promises: ``make versions``, or ``nox``.

``pure`` runs the tests of engine and coordinator on each Python with the lowest and the newest pyarrow and numpy of
``pyproject.toml``; ``package`` looks at the wheel as users get it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import nox

CHECKOUT = Path(__file__).parent
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
TOOLS = [each for each in PROJECT["optional-dependencies"]["dev"] if re.match(r"pytest|hypothesis|duckdb|adbc", each)]
RANGES = ("pyarrow", "numpy")
TYPED = """import penstock as ps

flow = ps.Flow("typed")
stream: int = flow.read_text("x")  # type: ignore[assignment]
flow.read_text("x", nmae="y")  # type: ignore[call-arg]
"""
"""What a type checker finds fault with; if it saw nothing of the package the comments would be errors."""

nox.options.default_venv_backend = "venv"


def lowest() -> list[str]:
    """The first version of each range."""
    found = (re.match(r"(\w+)>=([\d.]+)", each) for each in PROJECT["dependencies"])
    return [f"{each[1]}=={each[2]}" for each in found if each and each[1] in RANGES]


@nox.session(python=PYTHONS)
@nox.parametrize("versions", ["lowest", "newest"])
def pure(session: nox.Session, versions: str) -> None:
    """Engine and coordinator, without Ray and Spark."""
    session.install("setuptools>=77", *TOOLS, *(lowest() if versions == "lowest" else RANGES))
    session.install(
        "--no-build-isolation", "--config-settings", "editable_mode=lenient",
        "-e", ".[demo,sql,stores,torch]", *(lowest() if versions == "lowest" else ()),
    )  # fmt: skip
    session.run(
        "python", "-m", "pytest", "-p", "no:cacheprovider", "--pure", "-q", "-n", "2", "--dist", "loadfile",
        "-m", "not ray and not spark and not slow and not chaos and not large and not sweep",
        "tests/engine", "tests/coordinator", "tests/cases", *session.posargs,
    )  # fmt: skip


@nox.session(python=PYTHONS)
def package(session: nox.Session) -> None:
    """The wheel: its metadata, the README's ten lines in a bare environment, its types; and an editable install's."""
    session.install("build", "twine", "mypy")
    dist = session.create_tmp()
    session.run("python", "-m", "build", "--wheel", "--outdir", dist)
    [wheel] = Path(dist).glob("penstock-*.whl")
    session.run("twine", "check", "--strict", str(wheel))
    session.install(str(wheel))
    session.chdir(dist)
    Path("flights.csv").write_text("origin,dest,carrier,dep_delay\nEWR,IAH,UA,120\nLGA,IAH,UA,NA\n", encoding="utf-8")
    script = re.findall(r"```python\n(.*?)```", (CHECKOUT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    Path("late.py").write_text(script, encoding="utf-8")
    session.run("python", "late.py")
    Path("typed.py").write_text(TYPED, encoding="utf-8")
    session.run("mypy", "--strict", "typed.py")
    session.install("-e", str(CHECKOUT))
    session.run("mypy", "--strict", "--cache-dir", "editable", "typed.py")
