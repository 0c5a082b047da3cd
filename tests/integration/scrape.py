"""Reads a service's metrics as Prometheus does."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Scrape:
    """The families of one scrape by name."""

    families: dict[str, Metric]

    @classmethod
    def of(cls, port: int) -> Scrape:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
            text = response.read().decode()
        return cls({family.name: family for family in text_string_to_metric_families(text)})

    def value(self, sample: str, **labels: str) -> float:
        """The sum of the samples of this name that have these labels."""
        return sum(
            one.value
            for family in self.families.values()
            for one in family.samples
            if one.name == sample and labels.items() <= one.labels.items()
        )

    def labels(self) -> dict[str, set[str]]:
        """Label names by family, without a histogram's own."""
        return {
            name: {label for sample in family.samples for label in sample.labels} - {"le"}
            for name, family in self.families.items()
        }
