"""Requests and answers as JSON, between this program and the process of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infeng_bench.load.requests import Job, Reply, Served


def of_job(job: Job) -> dict[str, Any]:
    """Return the JSON of a request, which is answered greedily."""
    return {"at": job.at, "prompt": list(job.prompt), "new": job.new, "adapter": job.adapter}


def job_of(data: Mapping[str, Any]) -> Job:
    """Read the form of ``of_job``; raises KeyError, TypeError or ValueError for another form."""
    return Job(float(data["at"]), [int(token) for token in data["prompt"]], int(data["new"]), data["adapter"])


def of_served(served: Served) -> dict[str, Any]:
    """Return the JSON of a round of requests."""
    return {
        "requests": [{"admitted": one.sent, "times": one.times, "ids": one.ids} for one in served.replies],
        "seconds": served.seconds,
        "tokens_per_s": served.tokens / served.seconds,
        "cpu_seconds": served.cpu_seconds,
        "peak_rss_bytes": served.peak_rss_bytes,
    }


def served_of(jobs: Sequence[Job], answer: Mapping[str, Any]) -> Served:
    """Read the form of ``of_served``; raises KeyError, TypeError or ValueError for another form."""
    replies = []
    for job, one in zip(jobs, answer["requests"], strict=True):
        sent, times, ids = float(one["admitted"]), list(one["times"]), list(one["ids"])
        replies.append(Reply(job, sent, sent, times, len(times), ids, ended=times[-1] if times else sent))
    return Served(replies, float(answer["seconds"]), float(answer["cpu_seconds"]), int(answer["peak_rss_bytes"]))
