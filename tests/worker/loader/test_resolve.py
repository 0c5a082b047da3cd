"""Where a model's files are looked for, and what is said when they are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from worker.loader.errors import ModelConfigError, ModelNotFoundError
from worker.loader.resolve import GGUFFile, SafetensorsFiles, resolve_model


def directory_with(path: Path, *names: str) -> Path:
    path.mkdir(exist_ok=True)
    for name in names:
        (path / name).write_text("{}")
    return path


def test_a_directory(tmp_path: Path) -> None:
    directory = directory_with(tmp_path, "config.json", "model.safetensors", "tokenizer.json", "extra.safetensors")
    assert resolve_model(str(directory)) == SafetensorsFiles(
        directory=directory,
        config_file=directory / "config.json",
        weight_files=(directory / "model.safetensors",),
        tokenizer_file=directory / "tokenizer.json",
    )


def test_a_sharded_directory(tmp_path: Path) -> None:
    directory = directory_with(tmp_path, "config.json", "b.safetensors", "a.safetensors")
    index = {"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    files = resolve_model(str(directory))
    assert isinstance(files, SafetensorsFiles)
    assert [file.name for file in files.weight_files] == ["a.safetensors", "b.safetensors"]
    assert files.tokenizer_file is None

    (directory / "a.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"lacks a\.safetensors"):
        resolve_model(str(directory))

    (directory / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ModelConfigError, match="is not a safetensors index"):
        resolve_model(str(directory))


def test_a_gguf_file(tmp_path: Path) -> None:
    path = directory_with(tmp_path, "model.gguf") / "model.gguf"
    assert resolve_model(str(path)) == GGUFFile(path=path)


@pytest.mark.parametrize("model", ["/no/such/place", "./here", "~/nowhere", "a/b/c", "missing.gguf", "", "org/"])
def test_what_is_no_path_and_no_hub_id(model: str) -> None:
    with pytest.raises(ModelNotFoundError) as raised:
        resolve_model(model)
    assert f"model {model!r} not found: no such directory or file, and not a Hub id" in str(raised.value)


def test_a_hub_id_that_is_not_in_the_model_cache() -> None:
    with pytest.raises(ModelNotFoundError) as raised:  # tests run with HF_HUB_OFFLINE=1
        resolve_model("octavo-tests/no-such-model", revision="v1")
    message = str(raised.value)
    assert message.startswith("model 'octavo-tests/no-such-model' at revision 'v1' not found: no such directory")
    assert "from the Hub LocalEntryNotFoundError: " in message and "\n" not in message


def test_files_that_cannot_be_served(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json$"):
        resolve_model(str(tmp_path))
    with pytest.raises(ModelNotFoundError, match=r"it holds model\.gguf: name that file itself"):
        resolve_model(str(directory_with(tmp_path, "model.gguf")))
    with pytest.raises(ModelNotFoundError, match=r"lacks model\.safetensors; weights must be safetensors"):
        resolve_model(str(directory_with(tmp_path, "config.json", "pytorch_model.bin")))
    with pytest.raises(ModelNotFoundError, match=r"is a file but no \.gguf file"):
        resolve_model(str(tmp_path / "config.json"))
