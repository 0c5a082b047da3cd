"""Tokenizers and a model for the tests of the front end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scheduler.frontend.frontend import Frontend
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.tokenizer import Tokenizer, load_tokenizer
from tests.oracle.tokenizer import BOS, CHAT_TEMPLATE, END_OF_TURN, EOS, SPECIAL_TOKENS, VOCAB_SIZE, write_tokenizer
from tests.scheduler.frontend.engine_script import EngineScript

SMOLLM2 = Path(__file__).parents[3] / ".models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    """The tokenizer of a real model."""
    return load_tokenizer(str(SMOLLM2))


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory whose token ids are the bytes of the text, with two EOS ids and a chat template."""
    directory = tmp_path_factory.mktemp("bytes")
    write_tokenizer(directory)
    special = {"bos_token": SPECIAL_TOKENS[BOS], "eos_token": SPECIAL_TOKENS[EOS]}
    (directory / "tokenizer_config.json").write_text(json.dumps(special | {"chat_template": CHAT_TEMPLATE}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, END_OF_TURN]}))
    return directory


@pytest.fixture(scope="session")
def byte_tokenizer(byte_model: Path) -> Tokenizer:
    """The tokenizer of `byte_model`."""
    return load_tokenizer(str(byte_model))


@pytest.fixture(scope="session")
def model() -> ModelInfo:
    """Fits `byte_model`."""
    return ModelInfo(
        served_model_name="bytes",
        architecture="LlamaForCausalLM",
        dtype="float32",
        max_model_len=64,
        logits_width=VOCAB_SIZE,
        block_size=16,
    )


@pytest.fixture
def engine() -> EngineScript:
    return EngineScript()


@pytest.fixture
def frontend(engine: EngineScript, byte_tokenizer: Tokenizer, model: ModelInfo) -> Frontend:
    made = Frontend(tokenizer=byte_tokenizer, model=model, send=engine.send, clock_ns=lambda: engine.now_ns)
    engine.deliver = made.deliver
    return made
