"""What holds for every test: no network for model files."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before any test module imports huggingface_hub, which reads it once
