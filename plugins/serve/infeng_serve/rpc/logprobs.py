"""Log-probabilities in the messages of the service."""

from __future__ import annotations

from collections.abc import Sequence

from smg_grpc_proto import vllm_engine_pb2 as pb

from infeng_core.api import Logprob
from infeng_serve.protocol.logprobs import LOWEST


def of_output(given: Sequence[Logprob], top: int) -> pb.OutputLogProbs:
    """Return the log-probabilities of new tokens. top: requested number of likely alternatives for each."""
    return pb.OutputLogProbs(
        token_logprobs=[max(one.logprob, LOWEST) for one in given],
        token_ids=[one.token for one in given],
        top_logprobs=[_top(one) for one in given] if top else [],
    )


def of_prompt(ids: Sequence[int], given: Sequence[Logprob | None], top: int) -> pb.InputLogProbs:
    """Return the log-probabilities of a prompt's tokens ``ids``; the first has no context and so none."""
    return pb.InputLogProbs(
        token_logprobs=[pb.InputTokenLogProb(value=None if one is None else max(one.logprob, LOWEST)) for one in given],
        token_ids=ids,
        top_logprobs=[_top(one) for one in given] if top else [],
    )


def _top(one: Logprob | None) -> pb.TopLogProbs:
    top = () if one is None else one.top
    return pb.TopLogProbs(values=[max(value, LOWEST) for _, value in top], token_ids=[token for token, _ in top])
