"""What wheels need that answer the server's calls in another server's form; it may change with each version.

A dialect converts a body to the parameters of ``/v1/chat/completions`` (``ChatRequest``) or ``/v1/completions``
(``CompletionRequest``), so that checks, limits and defaults are the same, and renders the events of the answer itself.
"""

from infeng_serve.adapters import told_name
from infeng_serve.app import Handler
from infeng_serve.generating import generate, owned
from infeng_serve.http import JSON
from infeng_serve.model import Model
from infeng_serve.observability.load import load_values
from infeng_serve.protocol.answer import Answer, Context, Read
from infeng_serve.protocol.answer_reader import Reader
from infeng_serve.protocol.bounds import (
    MOST_MESSAGES,
    check_conversation,
    check_length,
    check_text,
    check_tokens,
    encoded,
)
from infeng_serve.protocol.chat import ChatRequest, Conversation, conversation, prompt_of
from infeng_serve.protocol.chat import read as read_chat
from infeng_serve.protocol.chat_answer import AnswerMessage, ChatResponse, assembled
from infeng_serve.protocol.completions import Completing, CompletionRequest, completing
from infeng_serve.protocol.dialogue import rendered
from infeng_serve.protocol.embedding_types import EmbeddingRequest
from infeng_serve.protocol.errors import ErrorForm, invalid, not_supported, of, unavailable
from infeng_serve.protocol.finish import reason as finish_reason
from infeng_serve.protocol.finish import stop_string
from infeng_serve.protocol.frames import Frames
from infeng_serve.protocol.logprobs import TokenLogprob
from infeng_serve.protocol.logprobs import chat as token_logprobs
from infeng_serve.protocol.messages import MESSAGES, checked
from infeng_serve.protocol.model_types import ModelList
from infeng_serve.protocol.operation import GENERATE, READ, Operation
from infeng_serve.protocol.parameters import LOGPROBS, MIROSTAT, PRIORITY, SECONDS, StructuredOutputs, known
from infeng_serve.protocol.prompts import PROMPT_SCHEMA, bare
from infeng_serve.protocol.reading import convert, decode
from infeng_serve.protocol.requests import MOST_REQUESTS, place
from infeng_serve.protocol.token_bytes import token_bytes
from infeng_serve.protocol.tools import FunctionName, Selection, ToolChoice, select
from infeng_serve.protocol.usage import reasoning_tokens
from infeng_serve.routes import embeddings, models
from infeng_serve.routes.embeddings import Form as EmbeddingForm
from infeng_serve.routes.embeddings import Streams, Work, answer_with_streams, embed, texts_of
from infeng_serve.routes.generation import handler, route
from infeng_serve.routes.tokens import answer as answer_with

__all__ = [
    "GENERATE",
    "JSON",
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
    "AnswerMessage",
    "ChatRequest",
    "ChatResponse",
    "Completing",
    "CompletionRequest",
    "Context",
    "Conversation",
    "EmbeddingForm",
    "EmbeddingRequest",
    "ErrorForm",
    "Frames",
    "FunctionName",
    "Handler",
    "Model",
    "ModelList",
    "Operation",
    "Read",
    "Reader",
    "Selection",
    "Streams",
    "StructuredOutputs",
    "TokenLogprob",
    "ToolChoice",
    "Work",
    "answer_with",
    "answer_with_streams",
    "assembled",
    "bare",
    "check_conversation",
    "check_length",
    "check_text",
    "check_tokens",
    "checked",
    "completing",
    "conversation",
    "convert",
    "decode",
    "embed",
    "embeddings",
    "encoded",
    "finish_reason",
    "generate",
    "handler",
    "invalid",
    "known",
    "load_values",
    "models",
    "not_supported",
    "of",
    "owned",
    "place",
    "prompt_of",
    "read_chat",
    "reasoning_tokens",
    "rendered",
    "route",
    "select",
    "stop_string",
    "texts_of",
    "token_bytes",
    "token_logprobs",
    "told_name",
    "unavailable",
]
