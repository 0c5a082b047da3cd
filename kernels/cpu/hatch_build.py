"""Hatchling hook: builds the native CPU ops for wheels and editable installs and puts the library into the wheel.

Only workers on a CPU need the library. So an install without a compiler goes on without it, with a warning, and such a
worker says at its start what to do; OCTAVO_SKIP_NATIVE=1 skips the build and the warning (a scheduler or client
install). A compiler that fails on the sources fails the install.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def _build_module(root: Path) -> ModuleType:
    """kernels/cpu/build.py by its path: in a build environment `kernels` may be another package or none."""
    spec = importlib.util.spec_from_file_location("octavo_native_build", root / "kernels" / "cpu" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get("OCTAVO_SKIP_NATIVE") == "1":
            return
        native = _build_module(Path(self.root))
        try:
            native.build()
        except native.CompilerMissingError as error:
            self.app.display_warning(
                f"the native CPU ops are left out: {error}. Schedulers and clients do without; "
                "OCTAVO_SKIP_NATIVE=1 silences this."
            )
            return
        except native.BuildError as error:
            self.app.abort(str(error))
        build_data["artifacts"].append("kernels/cpu/liboctavo_cpu.so")  # ignored by git, hence not taken by itself
        build_data["pure_python"] = False
        # Called through ctypes: tied to the platform, not to a Python version.
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
