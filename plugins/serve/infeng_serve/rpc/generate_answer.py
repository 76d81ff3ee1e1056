"""What the engine gives to a call as GenerateResponses; without I/O."""

from __future__ import annotations

from collections.abc import Sequence

from smg_grpc_proto import vllm_engine_pb2 as pb

from infeng_core.api import Completion, Event, Request, Tokenizer
from infeng_serve.rpc.logprobs import of_output, of_prompt

REASONS = {"stop": "stop", "length": "length", "timeout": "length", "cancelled": "abort"}
"""Why answers end, in the service's words; one that the time ended is cut off, as HTTP has it."""


class GenerateAnswer:
    """One answer in the making: chunks of new tokens and a complete message for each choice, or these alone."""

    def __init__(self, requests: Sequence[Request], *, streams: bool, tokenizer: Tokenizer) -> None:
        """requests: one for each choice, of one prompt. streams: whether chunks are wanted."""
        self.requests = requests
        self.streams = streams
        self._tokenizer = tokenizer

    def messages(self, choice: int, events: Sequence[Event]) -> list[pb.GenerateResponse]:
        """Return the messages of what one choice got: its new tokens together, and its end."""
        found = []
        tokens = [token for event in events for token in event.token_ids]
        if tokens:
            chunk = pb.GenerateStreamChunk(
                token_ids=tokens,
                prompt_tokens=len(self.requests[choice].prompt),
                completion_tokens=len(tokens),
                index=choice,
            )
            top = self.requests[choice].params.logprobs
            if top is not None:
                given = [one for event in events for one in event.logprobs]
                chunk.output_logprobs.CopyFrom(of_output(given, top))
            found.append(pb.GenerateResponse(chunk=chunk))
        completion = events[-1].completion if events else None
        if completion is not None:
            found.append(self.complete(choice, completion))
        return found

    def complete(self, choice: int, completion: Completion) -> pb.GenerateResponse:
        """Return the message that ends a choice; it has all of its tokens."""
        request, usage = self.requests[choice], completion.usage
        found = pb.GenerateComplete(
            output_ids=completion.token_ids,
            finish_reason=REASONS[completion.finish_reason],
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
    """Return which of a request's own stops ended it, a token or a text; None for the model's end token."""
    last = completion.token_ids[-1]
    if last in request.params.stop_token_ids:
        return last
    stops = request.params.stop
    if not stops:
        return None
    text = tokenizer.decode(completion.token_ids)
    found = [(begin + len(stop), stop) for stop in stops if (begin := text.find(stop)) >= 0]
    return min(found)[1] if found else None
