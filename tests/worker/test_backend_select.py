"""Which backend the flags give, and what they may not ask for."""

from __future__ import annotations

import pytest
import torch

from worker.backend.select import BackendError, automatic, make_backend

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_auto_is_native_on_a_cpu() -> None:
    backend = make_backend("auto", torch.bfloat16, CPU, 2, False)
    assert backend.name == "cpu" and backend.activation_dtype == torch.float32
    assert backend.describe()["threads"] == 2


@pytest.mark.parametrize(("installed", "name"), [(True, "triton"), (False, "torch")])
def test_auto_is_triton_on_a_gpu_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, installed: bool, name: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda package: package if installed else None)
    assert automatic(GPU) == name


def test_triton_on_a_cpu_is_for_its_interpreter_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setitem(vars(triton.knobs.runtime), "interpret", False)
    with pytest.raises(
        BackendError, match=r"--backend triton needs a CUDA GPU and --device is cpu; .* \(TRITON_INTERPRE"
    ):
        make_backend("triton", torch.float32, CPU, 2, False)


def test_torch_computes_in_the_storage_dtype() -> None:
    backend = make_backend("torch", torch.bfloat16, CPU, 2, False)
    assert backend.name == "torch" and backend.activation_dtype == torch.bfloat16
    assert backend.describe() == {"backend": "torch", "device": "cpu", "threads": 2}


@pytest.mark.parametrize(
    ("name", "device", "exact", "used"),
    [("torch", CPU, False, "torch"), ("auto", GPU, False, "triton|torch"), ("cpu", CPU, True, "cpu with --exact")],
)
def test_only_the_native_backend_quantises(name: str, device: torch.device, exact: bool, used: str) -> None:
    with pytest.raises(
        BackendError, match=f"^--quantization int8 needs --backend cpu without --exact, this is ({used})$"
    ):
        make_backend(name, torch.float32, device, 2, exact, "int8")


def test_exact_mode() -> None:
    assert make_backend("auto", torch.float32, CPU, 2, True).name == "cpu"


@pytest.mark.parametrize(
    ("name", "dtype", "device", "exact", "message"),
    [
        ("metal", torch.float32, CPU, False, "--backend is 'metal', must be one of auto, cpu, triton, torch"),
        ("cpu", torch.float32, GPU, False, "--backend cpu does not run on device cuda"),
        (
            "torch",
            torch.float32,
            CPU,
            True,
            "--exact needs --backend cpu and --dtype float32, this is torch with float32",
        ),
        ("auto", torch.bfloat16, CPU, True, "--exact needs .*, this is cpu with bfloat16"),
        ("auto", torch.float32, GPU, True, "--exact needs .*, this is (triton|torch) with float32"),
    ],
)
def test_errors(name: str, dtype: torch.dtype, device: torch.device, exact: bool, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        make_backend(name, dtype, device, 2, exact)
