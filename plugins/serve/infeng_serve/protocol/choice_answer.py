"""Common parts of the responses of /v1/completions and /v1/chat/completions: choices, frames and usage."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from infeng_core.api import Completion, Event, Request
from infeng_serve.protocol import finish
from infeng_serve.protocol import usage as counts
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.encoded_frames import Head, Streaming
from infeng_serve.protocol.frames import DONE, Frames
from infeng_serve.protocol.parameters import Choices
from infeng_serve.protocol.usage import Usage


class ChoiceAnswer(Frames):
    """Choices of one or several prompts. A subclass renders a choice's body, and its piece in a frame."""

    _END: bytes
    """The piece of a choice's last frame, as JSON."""

    def __init__(
        self,
        given: Choices,
        context: Context,
        requests: Sequence[Request],
        *,
        prompt_tokens: int,
        name: str,
        object: str,
        piece: bytes,
        n: int | None = None,
        counts_new: bool = True,
    ) -> None:
        """prompt_tokens: total of all prompts. name: prefix of the response's id. object, piece: as in ``Head``.

        n: requests of each prompt; None: all are of one prompt. counts_new: whether usage counts generated tokens.
        """
        super().__init__(given, context, requests)
        self.name = f"{name}-{context.id}"
        self.n = n or len(requests)
        self._prompt_tokens = prompt_tokens
        self._counts_new = counts_new
        self._head = Head(self.name, object, context, self.model, piece)
        self._stream = Streaming.of(given.stream_options)
        self._completions: list[Completion | None] = [None] * len(requests)
        self._tokens = 0  # sent so far
        self._reasoning = 0  # reasoning tokens of ended answers

    def _piece(self, choice: int, event: Event) -> tuple[bytes | None, bytes | None]:
        """Return a choice's piece in a frame, None if it is empty, and its log-probabilities; both as JSON."""
        raise NotImplementedError

    def _reason(self, choice: int, completion: Completion) -> str:
        """Return a choice's finish reason; called once for each choice."""
        return finish.reason(completion)

    def usage(self, completions: Sequence[Completion | None]) -> Usage:
        """Return the usage of all choices."""
        if not self._counts_new:
            return counts.so_far(self._prompt_tokens, 0)
        return counts.of(completions, self.n, self._prompt_tokens, self._reasoning)

    @property
    def fingerprint(self) -> str | msgspec.UnsetType:
        """``system_fingerprint``; unset if the server has none."""
        return self.context.fingerprint or msgspec.UNSET

    # ------------------------------------------------------------------------------------------------------ frames ---

    def frame(
        self, choice: int, piece: bytes, logprobs: bytes | None = None, ending: Sequence[str | None] = ()
    ) -> bytes:
        """Return a frame of a choice, with the usage if the client wants it in every frame. ending: finish reasons."""
        finish_reason, stop_reason = ending or (None, None)
        return self._head.frame(choice, piece, logprobs, finish_reason, stop_reason, self._stream.usage(self._so_far))

    def _render(self, choice: int, event: Event) -> list[bytes]:
        self._tokens += len(event.token_ids)
        piece, logprobs = self._piece(choice, event)
        frames = [] if piece is None else [self.frame(choice, piece, logprobs)]
        completion = event.completion
        if completion is not None:
            self._completions[choice] = completion
            reason = self._reason(choice, completion)
            frames.append(self.frame(choice, self._END, None, (reason, finish.cut(completion))))
        return frames

    def _close(self) -> list[bytes]:
        if not self._stream.includes:
            return [DONE]
        return [self._head.last(msgspec.json.encode(self.usage(self._completions))), DONE]

    def _so_far(self) -> Usage:
        return counts.so_far(self._prompt_tokens, self._tokens if self._counts_new else 0)
