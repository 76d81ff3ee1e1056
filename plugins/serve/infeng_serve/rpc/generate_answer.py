"""Conversion of the engine's events to GenerateResponses, without I/O."""

from __future__ import annotations

from collections.abc import Sequence

from smg_grpc_proto import vllm_engine_pb2 as pb

from infeng_core.api import Completion, Event, Request, Tokenizer
from infeng_serve.protocol import finish
from infeng_serve.protocol.answer import merged
from infeng_serve.rpc.logprobs import of_output, of_prompt


class GenerateAnswer:
    """One answer in progress: chunks of new tokens if it streams, and a complete message for each choice."""

    def __init__(self, requests: Sequence[Request], *, streams: bool, tokenizer: Tokenizer) -> None:
        """requests: one for each choice, of one prompt. streams: whether to send chunks."""
        self.requests = requests
        self.streams = streams
        self._tokenizer = tokenizer

    def messages(self, choice: int, events: Sequence[Event]) -> list[pb.GenerateResponse]:
        """Return the messages for a choice's events: a chunk with its new tokens, and its end."""
        found, event, request = [], merged(events), self.requests[choice]
        if event.token_ids:
            chunk = pb.GenerateStreamChunk(
                token_ids=event.token_ids,
                prompt_tokens=len(request.prompt),
                completion_tokens=len(event.token_ids),
                index=choice,
            )
            if request.params.logprobs is not None:
                chunk.output_logprobs.CopyFrom(of_output(event.logprobs, request.params.logprobs))
            found.append(pb.GenerateResponse(chunk=chunk))
        if event.completion is not None:
            found.append(self.complete(choice, event.completion))
        return found

    def complete(self, choice: int, completion: Completion) -> pb.GenerateResponse:
        """Return the message that ends a choice, with all of its tokens."""
        request, usage = self.requests[choice], completion.usage
        found = pb.GenerateComplete(
            output_ids=completion.token_ids,
            finish_reason="abort" if finish.cut(completion) == "cancelled" else finish.reason(completion),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            index=choice,
            spec_accepted_tokens=usage.accepted_tokens,
            spec_draft_tokens=usage.drafted_tokens,
        )
        params = request.params
        if params.logprobs is not None:
            found.output_logprobs.CopyFrom(of_output(completion.logprobs, params.logprobs))
        if params.prompt_logprobs is not None:
            ids = request.prompt if isinstance(request.prompt, tuple) else ()
            found.input_logprobs.CopyFrom(of_prompt(ids, completion.prompt_logprobs, params.prompt_logprobs))
        if completion.finish_reason == "stop":
            stop = matched(completion, request, self._tokenizer)
            if isinstance(stop, int):
                found.matched_token_id = stop
            elif stop is not None:
                found.matched_stop_str = stop
        return pb.GenerateResponse(complete=found)


def matched(completion: Completion, request: Request, tokenizer: Tokenizer) -> int | str | None:
    """Return the stop token or text of the request that ended it; None for the model's end token."""
    last = completion.token_ids[-1]
    if last in request.params.stop_token_ids:
        return last
    stops = request.params.stop
    if not stops:
        return None
    text = tokenizer.decode(completion.token_ids)
    found = [(begin + len(stop), stop) for stop in stops if (begin := text.find(stop)) >= 0]
    return min(found)[1] if found else None
