"""What may import what, where import-linter's deny lists do not reach: contracts read from the syntax trees.

The linter itself runs here too, so that `make test` is enough to see every contract.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("scheduler", "worker", "kernels", "clients")
CORE_FORBIDDEN = {"logging", "asyncio", "time", "random", "threading", "socket", "os", "datetime", "secrets", "uuid"}


def sources(*folders: str) -> list[Path]:
    """Python files under folders of the repository, as paths relative to it."""
    return sorted(path.relative_to(REPOSITORY) for folder in folders for path in (REPOSITORY / folder).rglob("*.py"))


def tree(source: Path) -> ast.Module:
    return ast.parse((REPOSITORY / source).read_text(encoding="utf-8"), filename=str(source))


def imports(module: ast.Module) -> Iterator[str]:
    """Full names of what a module imports, wherever in it: `from a import b` gives a and a.b."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            yield name
            yield from (f"{name}.{alias.name}" for alias in node.names)


def report(violations: list[str]) -> None:
    assert not violations, "\n" + "\n".join(violations)


def test_the_core_imports_only_the_standard_library_and_itself() -> None:
    violations = []
    for source in sources("scheduler/core"):
        for name in imports(tree(source)):
            root = name.split(".")[0]
            if name == "scheduler.core" or name.startswith("scheduler.core."):
                continue
            if root not in sys.stdlib_module_names or root in CORE_FORBIDDEN:
                violations.append(f"{source} imports {name}")
    assert sources("scheduler/core")
    report(violations)


def test_generated_modules_are_imported_only_where_the_wire_is() -> None:
    def may(source: Path) -> bool:
        return source.name in {"wire.py", "service.py", "server.py"} or source.stem.endswith(("_service", "_client"))

    report(
        [
            f"{source} imports {name}"
            for source in sources(*PACKAGES)
            if not may(source)
            for name in imports(tree(source))
            # Generated for this project; google.rpc's and grpc_health's are libraries like others.
            if name.startswith("octavo.")
        ]
    )


def test_the_environment_is_read_only_where_programs_begin() -> None:
    def may(source: Path) -> bool:
        # The command that starts both services sets their environment, the build reads the compiler's.
        others = {Path("clients/local/child.py"), Path("kernels/cpu/hatch_build.py"), Path("kernels/cpu/build.py")}
        return source.name == "__main__.py" or source in others

    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    violations = []
    for source in sources(*PACKAGES):
        if may(source):
            continue
        for node in ast.walk(tree(source)):
            if isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os":
                violations.append(f"{source}:{node.lineno} reads os.{node.attr}")
            if isinstance(node, ast.ImportFrom) and node.module == "os":
                violations += [f"{source}:{node.lineno} imports os.{a.name}" for a in node.names if a.name in names]
    report(violations)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_do_not_reach_across(package: str) -> None:
    """Also what import-linter's graph cannot see: imports under TYPE_CHECKING and inside functions count too."""
    forbidden = {
        "scheduler": {"worker", "kernels", "clients", "torch", "triton", "safetensors", "tests"},
        "worker": {"scheduler", "clients", "tests"},
        "kernels": {"scheduler", "worker", "clients", "octavo", "grpc", "tests"},
        "clients": {"scheduler", "worker", "kernels", "torch", "tests"},
    }[package]
    report(
        [
            f"{source} imports {name}"
            for source in sources(package)
            for name in imports(tree(source))
            if name.split(".")[0] in forbidden
        ]
    )


def test_import_linter_keeps_its_contracts() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    if not linter.exists():
        pytest.skip(f"{linter} is absent: import-linter is a development dependency")
    env = {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'protos' / 'gen'}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [linter, "--no-cache"], cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
