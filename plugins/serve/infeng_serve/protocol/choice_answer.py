"""What /v1/completions and /v1/chat/completions answer with: choices, whole or in frames, and the tokens they took."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from infeng_core.api import Completion, Event, Request
from infeng_serve.protocol import finish
from infeng_serve.protocol import usage as counts
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.frames import DONE, Frames
from infeng_serve.protocol.head import Head, Streaming
from infeng_serve.protocol.parameters import Choices
from infeng_serve.protocol.usage import Usage


class ChoiceAnswer(Frames):
    """Choices of one or several prompts. A subclass makes a choice's body, and the piece that a frame has of it."""

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
        """prompt_tokens: of all prompts. name: what goes before the call's id. object, piece: of a frame, as ``Head``.

        n: requests of each prompt; None: all are of one. counts_new: whether usage has the tokens that were made.
        """
        super().__init__(given, context, requests)
        self.name = f"{name}-{context.id}"
        self.n = n or len(requests)
        self._prompt_tokens = prompt_tokens
        self._counts_new = counts_new
        self._head = Head(self.name, object, context, self.model, piece)
        self._stream = Streaming.of(given.stream_options)
        self._completions: list[Completion | None] = [None] * len(requests)
        self._tokens = 0  # that were given
        self._reasoning = 0  # tokens of ended answers

    def _piece(self, choice: int, event: Event) -> tuple[bytes | None, bytes | None]:
        """Return what a frame says of a choice, None for nothing, and its log-probabilities; both as JSON."""
        raise NotImplementedError

    def _reason(self, choice: int, completion: Completion) -> str:
        """Return why a choice ended; called once for each."""
        return finish.reason(completion)

    def usage(self, completions: Sequence[Completion | None]) -> Usage:
        """Return how many tokens all choices took."""
        if not self._counts_new:
            return counts.so_far(self._prompt_tokens, 0)
        return counts.of(completions, self.n, self._prompt_tokens, self._reasoning)

    @property
    def fingerprint(self) -> str | msgspec.UnsetType:
        """What identifies the model and the engine's version; unset where the server has none."""
        return self.context.fingerprint or msgspec.UNSET

    # ------------------------------------------------------------------------------------------------------ frames ---

    def frame(
        self, choice: int, piece: bytes, logprobs: bytes | None = None, ending: Sequence[str | None] = ()
    ) -> bytes:
        """Return a frame of a choice, with the usage where every frame tells it. ending: its reasons."""
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
