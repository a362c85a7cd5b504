"""What a service exposes, as Prometheus reads it."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

# What a family's series are called besides its own name.
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}


class Scrape:
    """One service's series at one moment."""

    def __init__(self, text: str) -> None:
        self.text = text
        families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in families for sample in family.samples]
        self.names = {
            family.name.removesuffix("_total") + suffix if family.type == "counter" else family.name + suffix
            for family in families
            for suffix in SUFFIXES.get(family.type, ("",))
        }

    def value(self, name: str, **labels: str) -> float:
        """The sum over all series of this name with these labels; 0 without any."""
        assert name in self.names, f"{name} is not exposed"
        found = [each for each in self.samples if each.name == name and labels.items() <= each.labels.items()]
        return sum(each.value for each in found)

    def labels_of(self, name: str) -> set[str]:
        return {label for each in self.samples if each.name == name for label in each.labels}


def scrape(url: str, key: str | None = None) -> Scrape:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as response:
        return Scrape(response.read().decode())
