"""Fixtures of the tests with real processes, and the logs of the processes in the report of a failed test."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.integration.processes import ServiceProcess
from tests.oracle.uniform import UniformOracle


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for process in ServiceProcess.touched:
            report.sections.append((f"log of {process.name} on {process.address}", process.log_tail()))
    if call.when == "teardown":
        ServiceProcess.forget_ended()
    return report


@pytest.fixture(scope="session")
def uniform() -> UniformOracle:
    """The multiset oracle."""
    return UniformOracle()


@pytest.fixture(scope="session")
def uniform_model(uniform: UniformOracle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its checkpoint."""
    return uniform.write(tmp_path_factory.mktemp("uniform"))
