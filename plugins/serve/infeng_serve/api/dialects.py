"""What wheels need that answer the server's calls in another server's form; it may change with each version.

A dialect converts a body to the parameters of ``/v1/chat/completions`` (``ChatRequest``) or ``/v1/completions``
(``CompletionRequest``), so that checks, limits and defaults are the same, and renders the events of the answer itself.
"""

from infeng_serve.generating import owned
from infeng_serve.model import Model
from infeng_serve.protocol.answer import Answer, Context
from infeng_serve.protocol.answer_reader import Reader
from infeng_serve.protocol.bounds import (
    MOST_MESSAGES,
    check_length,
    check_text,
    check_tokens,
    encoded,
)
from infeng_serve.protocol.chat import ChatRequest, Conversation, conversation, prompt_of
from infeng_serve.protocol.chat import read as read_chat
from infeng_serve.protocol.chat_answer import ChatChunk, ChatResponse
from infeng_serve.protocol.completions import Completing, CompletionRequest, completing
from infeng_serve.protocol.embedding_types import EmbeddingRequest
from infeng_serve.protocol.errors import invalid, not_supported, unavailable
from infeng_serve.protocol.finish import reason as finish_reason
from infeng_serve.protocol.finish import stop_string
from infeng_serve.protocol.frames import Frames
from infeng_serve.protocol.logprobs import TokenLogprob
from infeng_serve.protocol.logprobs import chat as token_logprobs
from infeng_serve.protocol.messages import MESSAGES
from infeng_serve.protocol.model_types import ModelList
from infeng_serve.protocol.operation import GENERATE, READ, Operation
from infeng_serve.protocol.parameters import LOGPROBS, MIROSTAT, PRIORITY, SECONDS, StructuredOutputs, known
from infeng_serve.protocol.prompts import PROMPT_SCHEMA, bare
from infeng_serve.protocol.reading import convert, decode
from infeng_serve.protocol.requests import MOST_REQUESTS, place
from infeng_serve.protocol.tools import FunctionName, ToolChoice
from infeng_serve.routes.embeddings import Streams, Work, answer_with_streams, embed, texts_of
from infeng_serve.routes.generation import handler, route
from infeng_serve.routes.models import listed as list_models
from infeng_serve.routes.tokens import answer as answer_with

__all__ = [
    "GENERATE",
    "LOGPROBS",
    "MESSAGES",
    "MIROSTAT",
    "MOST_MESSAGES",
    "MOST_REQUESTS",
    "PRIORITY",
    "PROMPT_SCHEMA",
    "READ",
    "SECONDS",
    "Answer",
    "ChatChunk",
    "ChatRequest",
    "ChatResponse",
    "Completing",
    "CompletionRequest",
    "Context",
    "Conversation",
    "EmbeddingRequest",
    "Frames",
    "FunctionName",
    "Model",
    "ModelList",
    "Operation",
    "Reader",
    "Streams",
    "StructuredOutputs",
    "TokenLogprob",
    "ToolChoice",
    "Work",
    "answer_with",
    "answer_with_streams",
    "bare",
    "check_length",
    "check_text",
    "check_tokens",
    "completing",
    "conversation",
    "convert",
    "decode",
    "embed",
    "encoded",
    "finish_reason",
    "handler",
    "invalid",
    "known",
    "list_models",
    "not_supported",
    "owned",
    "place",
    "prompt_of",
    "read_chat",
    "route",
    "stop_string",
    "texts_of",
    "token_logprobs",
    "unavailable",
]
