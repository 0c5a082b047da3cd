"""Tokenizers from model directories, and how a model is found."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from tokenizers import processors

from scheduler.config import SchedulerConfig
from scheduler.frontend.chat import render_chat
from scheduler.frontend.errors import ModelNotFoundError, UnsupportedModelError
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.request import ChatMessage, ChatPrompt, GenerateInput, SamplingInput, TextPrompt, ToolCall
from scheduler.frontend.sampling_defaults import SamplingDefaults
from scheduler.frontend.server import make_frontend
from scheduler.frontend.tokenizer import Tokenizer, load_tokenizer
from tests.oracle.tokenizer import BOS, END_OF_TURN, EOS, SPECIAL_TOKENS, byte_ids
from tests.scheduler.frontend.conftest import SMOLLM2
from tests.scheduler.frontend.engine_script import EngineScript


@pytest.fixture
def directory(byte_model: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(byte_model, tmp_path / "model"))


def update_json(path: Path, **values: object) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | values))


def add_bos_of_post_processor(directory: Path) -> None:
    path = directory / "tokenizer.json"
    backend = tokenizers.Tokenizer.from_file(str(path))
    bos = SPECIAL_TOKENS[BOS]
    backend.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, BOS)])
    backend.save(str(path))


def test_the_facts_of_the_files(byte_model: Path, byte_tokenizer: Tokenizer) -> None:
    assert byte_tokenizer.encode("aé") == tuple(byte_ids("aé"))
    assert byte_tokenizer.eos_token_ids == (EOS, END_OF_TURN)
    assert byte_tokenizer.bos_token_id == BOS
    assert byte_tokenizer.special_token_ids == SPECIAL_TOKENS.keys()
    assert byte_tokenizer.token_bytes[:256] == tuple(bytes([byte]) for byte in range(256))
    assert byte_tokenizer.digest == hashlib.sha256((byte_model / "tokenizer.json").read_bytes()).digest()
    assert byte_tokenizer.has_chat_template
    assert byte_tokenizer.sampling_defaults == SamplingDefaults()


def test_equals_transformers(directory: Path) -> None:
    from transformers import AutoTokenizer

    add_bos_of_post_processor(directory)
    # A leftover that contradicts the post-processor, which goes first.
    update_json(directory / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", add_bos_token=False)
    ours, theirs = load_tokenizer(str(directory)), AutoTokenizer.from_pretrained(directory)
    for text in ("plain", "a <|eos|> b", "日本"):
        assert list(ours.encode(text)) == theirs.encode(text)
        assert ours.encode(text)[0] == BOS
    messages = [{"role": "user", "content": "Hello"}]
    text = str(theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    assert ours.chat_template.render(messages, add_generation_prompt=True) == text
    assert list(ours.encode(text, special_tokens=False)) == theirs.encode(text, add_special_tokens=False)


TOOL_TEMPLATE = """{{- bos_token }}
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}
{%- for m in messages %}
    {%- if m.tool_calls %}{% for call in m.tool_calls %}
        {%- set f = call.function %}<tool_call>{{ {"name": f.name, "arguments": f.arguments} | tojson(indent=2) }}
{% endfor %}{% else %}[{{ m.role }}]{{ m.content.strip('\n') | trim }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}[assistant]{% if not enable_thinking %}<think></think>{% endif %}{% endif %}"""


@pytest.mark.parametrize(
    "ending", [{}, {"add_generation_prompt": False}, {"continue_final_message": True}], ids=["turn", "none", "goes on"]
)
def test_a_chat_with_tools_equals_transformers(directory: Path, ending: dict[str, bool]) -> None:
    from transformers import AutoTokenizer

    update_json(directory / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    (directory / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 5, "a": "é<"}}}]
    call = {"name": "f", "arguments": {"b": 1, "a": [None, "é"]}}
    theirs = AutoTokenizer.from_pretrained(directory).apply_chat_template(
        [
            {"role": "user", "content": " Hi "},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "c", "function": call}]},
            {"role": "tool", "content": "7", "tool_call_id": "c", "name": "f"},
            {"role": "assistant", "content": "It is 7, "},
        ],
        tools=tools,
        enable_thinking=False,
        tokenize=False,
        **{"add_generation_prompt": not ending, **ending},
    )
    made = ToolCall(id="c", name="f", arguments=json.dumps(call["arguments"]))
    chat = ChatPrompt(
        messages=(
            ChatMessage(role="user", content=" Hi "),
            ChatMessage(role="assistant", content="", tool_calls=(made,)),
            ChatMessage(role="tool", content="7", tool_call_id="c", name="f"),
            ChatMessage(role="assistant", content="It is 7, "),
        ),
        tools=tuple(map(json.dumps, tools)),
        template_kwargs='{"enable_thinking": false}',
        **ending,
    )
    ours = render_chat(chat, load_tokenizer(str(directory)).chat_template)
    assert ours == theirs


def test_a_template_of_its_own_for_tools_is_found(directory: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    update_json(directory / "tokenizer_config.json", chat_template=named)
    template = load_tokenizer(str(directory)).chat_template
    assert template.render([], add_generation_prompt=True) == "plain"
    assert template.render([], add_generation_prompt=True, tools=[{}]) == "tools"
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text("from the file")
    template = load_tokenizer(str(directory)).chat_template
    assert template.render([], add_generation_prompt=True, tools=[{}]) == "from the file"


def test_a_bos_of_the_post_processor_is_kept_and_never_doubled(directory: Path) -> None:
    add_bos_of_post_processor(directory)
    (directory / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0]['content'] }}")
    tokenizer = load_tokenizer(str(directory))
    assert tokenizer.encode("a") == (BOS, ord("a"))
    text = tokenizer.chat_template.render([{"role": "user", "content": "a"}], add_generation_prompt=True)
    assert tokenizer.encode(text, special_tokens=False) == (BOS, ord("a"))


def test_truncation_and_padding_left_in_the_file_are_ignored(directory: Path) -> None:
    path = directory / "tokenizer.json"
    backend = tokenizers.Tokenizer.from_file(str(path))
    backend.enable_truncation(max_length=4)
    backend.enable_padding(length=8)
    backend.save(str(path))
    assert load_tokenizer(str(directory)).encode("abcdefghij") == tuple(byte_ids("abcdefghij"))
    assert load_tokenizer(str(directory)).encode("ab") == tuple(byte_ids("ab"))


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [1, 2]}, {"eos_token_id": 3}, (1, 2)),
        ({"eos_token_id": 1}, {}, (1,)),
        ({}, {"eos_token_id": 3}, (3,)),
        ({}, {}, (EOS,)),
    ],
    ids=["generation_config", "one", "config", "tokenizer_config"],
)
def test_where_eos_ids_come_from(
    generation: dict[str, object], config: dict[str, object], expected: tuple[int, ...], directory: Path
) -> None:
    (directory / "generation_config.json").write_text(json.dumps(generation))
    (directory / "config.json").write_text(json.dumps(config))
    assert load_tokenizer(str(directory)).eos_token_ids == expected


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9},
            SamplingDefaults(temperature=0.6, top_k=20, top_p=0.9),
        ),
        ({"temperature": 0.7, "min_p": 0.1}, SamplingDefaults(temperature=0.7, min_p=0.1)),
        ({"do_sample": False, "temperature": 0.6}, SamplingDefaults(temperature=0.0)),
        (
            {"do_sample": False, "repetition_penalty": 1.1},
            SamplingDefaults(temperature=0.0, repetition_penalty=1.1),
        ),
        ({"do_sample": True, "top_k": None}, SamplingDefaults()),
        ({"repetition_penalty": 1.05}, SamplingDefaults(repetition_penalty=1.05)),
    ],
)
def test_sampling_defaults(generation: dict[str, object], expected: SamplingDefaults, directory: Path) -> None:
    update_json(directory / "generation_config.json", **generation)
    assert load_tokenizer(str(directory)).sampling_defaults == expected


@pytest.mark.parametrize(("flag", "temperature", "top_k"), [("auto", 0.6, 20), ("none", 1.0, 0)])
def test_the_server_may_leave_the_models_defaults_aside(
    flag: str, temperature: float, top_k: int, directory: Path, model: ModelInfo
) -> None:
    update_json(directory / "generation_config.json", temperature=0.6, top_k=20)
    config = SchedulerConfig(model=str(directory), generation_config=flag)
    engine = EngineScript()
    frontend = make_frontend(config, model, load_tokenizer(str(directory)), engine.send, why_unavailable=str)

    async def ask() -> None:
        async with frontend.open(GenerateInput(request_id="r", prompt=TextPrompt(text="a"), sampling=SamplingInput())):
            pass

    asyncio.run(ask())
    sampling = engine.added[0].sampling
    assert (sampling.temperature, sampling.top_k) == (temperature, top_k)


def test_a_default_out_of_range_is_named(directory: Path) -> None:
    update_json(directory / "generation_config.json", top_p=1.5)
    with pytest.raises(UnsupportedModelError, match=r"top_p is 1\.5, must be \(0, 1\]"):
        load_tokenizer(str(directory))


def test_the_template_file_goes_before_the_config_and_a_named_one_is_found(directory: Path) -> None:
    messages = [{"role": "user", "content": "x"}]
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "named"}]
    update_json(directory / "tokenizer_config.json", chat_template=named)
    assert load_tokenizer(str(directory)).chat_template.render(messages, add_generation_prompt=True) == "named"
    (directory / "chat_template.jinja").write_text("from the file")
    assert load_tokenizer(str(directory)).chat_template.render(messages, add_generation_prompt=True) == "from the file"


def test_a_model_without_a_tokenizer_takes_ids_only(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    tokenizer = load_tokenizer(str(tmp_path))
    assert not tokenizer.has_text
    assert not tokenizer.has_chat_template
    assert tokenizer.eos_token_ids == (7,)
    assert tokenizer.digest == b""
    assert tokenizer.detokenizer().feed([1, 2, 3]) == ""


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"tokenizer.model": "x"}, "has tokenizer.model, but no tokenizer.json"),
        ({"tokenizer.json": "{"}, "tokenizer.json"),
        ({"generation_config.json": "{"}, "generation_config.json: not JSON"),
        ({"config.json": "[]"}, "must hold a JSON object, holds a list"),
    ],
    ids=["sentencepiece", "tokenizer", "json", "list"],
)
def test_unreadable_files_are_named(files: dict[str, str], named: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UnsupportedModelError, match=named):
        load_tokenizer(str(tmp_path))


def test_an_unsupported_decoder_is_named(directory: Path) -> None:
    path = directory / "tokenizer.json"
    update_json(path, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    with pytest.raises(UnsupportedModelError, match="decoder WordPiece is not supported; byte-level BPE"):
        load_tokenizer(str(directory))


@pytest.mark.parametrize(
    "model", ["/no/such/model", "./no-such", "no-such.gguf", "a/b/c", "", "no-such-owner/no-such-model"]
)
def test_a_model_that_is_not_there_is_named_with_what_was_tried(model: str) -> None:
    with pytest.raises(ModelNotFoundError) as error:
        load_tokenizer(model)
    assert repr(model) in str(error.value)
    assert str(Path(model).absolute()) in str(error.value)


def test_a_hub_id_says_that_the_hub_was_not_asked_when_offline() -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"no Hub repository 'no-such-owner/no-such-model' .*HF_HUB_OFFLINE is set"
    ):
        load_tokenizer("no-such-owner/no-such-model", revision="main")


def test_a_hub_id_is_found_in_the_hub_cache(byte_model: Path, tmp_path: Path) -> None:
    commit = "0" * 40
    repository = tmp_path / "models--owner--name"
    shutil.copytree(byte_model, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    code = "from scheduler.frontend.tokenizer import load_tokenizer; print(load_tokenizer('owner/name').encode('hi'))"
    environment = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)}
    assert run_python(code, environment) == str(tuple(byte_ids("hi")))


@pytest.mark.parametrize("kind", ["gguf", "directory"])
def test_loading_imports_neither_torch_nor_transformers(kind: str, byte_model: Path) -> None:
    model = SMOLLM2 if kind == "gguf" else byte_model
    code = (
        "import sys; from scheduler.frontend import service; from scheduler.frontend.admin import service as admin; "
        f"from scheduler.frontend.tokenizer import load_tokenizer; load_tokenizer({str(model)!r}).encode('x'); "
        "print(sorted({'torch', 'transformers', 'numpy'} & sys.modules.keys()))"
    )
    assert run_python(code, {}) == "[]"


def run_python(code: str, environment: dict[str, str]) -> str:
    root = Path(__file__).parents[3]
    path = f"{root}:{root / 'protos' / 'gen'}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env={"PYTHONPATH": path} | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
