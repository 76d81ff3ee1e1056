"""Parser of a server's ``/metrics``: values by name and labels, and percentiles of histograms."""

from __future__ import annotations

import math
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from infeng_core.api import InfengError, UsageError
from infeng_serve.observability.families import TEXT

Labels = frozenset[tuple[str, str]]

MOST_BYTES = 64 << 20

_SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+(\S+)')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PREFIX = re.compile(r"(infeng|vllm):")
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True)
class Scrape:
    """One scrape; names are without prefix."""

    values: Mapping[str, Mapping[Labels, float]]
    at: float
    """Time of the scrape in seconds, of any clock."""

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the values with these labels and any others; 0 if there are none."""
        wanted = frozenset(labels.items())
        return sum(value for of, value in self.values.get(name, {}).items() if wanted <= of)

    def names(self, family: str, label: str) -> list[str]:
        """Return the values of a label, in the order of the scrape."""
        found = (dict(of).get(label) for of in self.values.get(family, {}))
        return list(dict.fromkeys(one for one in found if one is not None))

    def buckets(self, histogram: str, **labels: str) -> dict[float, float]:
        """Return the cumulative counts of a histogram by bound."""
        wanted, found = frozenset(labels.items()), dict[float, float]()
        for of, value in self.values.get(f"{histogram}_bucket", {}).items():
            if wanted <= of:
                bound = float(dict(of)["le"])
                found[bound] = found.get(bound, 0.0) + value
        return found


def read(text: str, at: float) -> Scrape:
    """Parse a text in either format; lines without a value are skipped."""
    values: dict[str, dict[Labels, float]] = {}
    for line in text.split("\n"):
        match = _SAMPLE.match(line)
        if match is None:
            continue
        name = _PREFIX.sub("", match[1], count=1)
        labels = frozenset((key, re.sub(r"\\.", _unescaped, value)) for key, value in _LABEL.findall(match[2] or ""))
        try:
            values.setdefault(name, {})[labels] = float(match[3])
        except ValueError:
            continue
    return Scrape(values, at)


def quantile(q: float, now: Mapping[float, float], before: Mapping[float, float]) -> float | None:
    """Return the ``q``-quantile of the values since ``before``; None if there are none.

    As Prometheus' ``histogram_quantile``: linear within a bucket, and at most the largest bound.
    """
    counts = [(bound, now[bound] - before.get(bound, 0.0)) for bound in sorted(now)]
    total = counts[-1][1] if counts else 0.0
    if total <= 0:
        return None
    below, low = 0.0, 0.0
    for bound, count in counts:
        if count >= q * total and count > below:
            return low if math.isinf(bound) else low + (bound - low) * (q * total - below) / (count - below)
        below, low = count, bound if not math.isinf(bound) else low
    return low


def fetch(url: str, api_key: str | None, timeout: float = 10.0) -> str:
    """Fetch a server's metrics; raises InfengError, and UsageError for an invalid URL."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"URL {url}", "it is neither http nor https", "such as http://localhost:8000")
    whole = url if url.rstrip("/").endswith("/metrics") else f"{url.rstrip('/')}/metrics"
    headers = {"Accept": TEXT, **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
    try:
        with urllib.request.urlopen(urllib.request.Request(whole, headers=headers), timeout=timeout) as answer:
            body: bytes = answer.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        remedy = "give --api-key" if error.code in (401, 403) else "is it the server's address?"
        raise InfengError(whole, f"it answers {error.code} {error.reason}", remedy) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise InfengError(whole, f"it cannot be read ({why})", "does the server run there?") from None
    if len(body) > MOST_BYTES:
        raise InfengError(whole, f"it answers with more than {MOST_BYTES} bytes", "is it the server's address?")
    return body.decode("utf-8", "replace")


def _unescaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0], match[0])
