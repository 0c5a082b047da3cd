"""A model by its Hub id: downloaded by both services into HF_HUB_CACHE, and served from there without a network."""

from __future__ import annotations

from pathlib import Path

from tests.integration.harness import cluster, scheduler_process, worker_process
from tests.integration.hub_server import HubServer
from tests.oracle.lookup import LookupOracle, chain
from tests.oracle.tokenizer import EOS, byte_ids

REPO = "tests/lookup-oracle"
ONLINE = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}


def test_a_hub_id_is_downloaded_once_and_then_served_offline(tmp_path: Path) -> None:
    model = LookupOracle(chain(*byte_ids("?yes"), EOS)).write(tmp_path / "model")
    cache = {"HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "home")}
    with HubServer(REPO, model) as hub:
        online = {**cache, **ONLINE, "HF_ENDPOINT": hub.endpoint}
        with cluster(REPO, tmp_path / "online", env=online) as server:
            assert server.complete("Is it so?").text == "yes"
            assert server.client.model_info(timeout=10).served_model_name == REPO
        assert any(path.endswith("/model.safetensors") for path in hub.requests)
        closed = hub.endpoint
    assert list((tmp_path / "cache").rglob("model.safetensors"))

    offline = {**cache, "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": closed}
    with cluster(REPO, tmp_path / "offline", env=offline) as server:
        assert server.complete("Is it so?").text == "yes"


def test_an_unknown_hub_id_ends_the_services_with_a_line_that_names_it(tmp_path: Path) -> None:
    model = LookupOracle({}).write(tmp_path / "model")
    with HubServer(REPO, model) as hub:
        env = {**ONLINE, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_ENDPOINT": hub.endpoint}
        processes = [
            worker_process("tests/no-such-model", tmp_path, env=env),
            scheduler_process("tests/no-such-model", tmp_path, "127.0.0.1:9", env=env),
        ]
        for process in processes:
            try:
                assert process.start().wait() != 0
            finally:
                process.kill()
            log = process.log_text()
            assert "tests/no-such-model" in log.strip().splitlines()[-1]
            assert "Traceback" not in log
