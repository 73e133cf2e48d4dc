"""The providers of models: what the API of each takes, and how the rest is put for it.

To add one, write it here and add it to ``PROVIDERS``: the setting ``accepts``, its schema and what ``check``
says follow from that.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec
from msgspec.structs import replace

Names = frozenset[str]


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider's API takes: lists of names that may pass, and rules for the conversation.

    ``fields`` names the top level, ``messages`` the fields of a message by its role, ``calls`` those of an
    entry of ``tool_calls``. ``renames`` leads from a client's name at the top level to the provider's, and
    ``roles`` does so for roles. A provider without ``functions`` gets tools instead.

    ``system`` says where system messages may stand: anywhere (``many``), only at the start (``first``), or
    as a single message at the start (``one``). ``alternate``: user and assistant take turns, and the user
    begins. ``user_ends``: an answer may not be the last message. ``answer_follows_tool``: the user may not
    follow the result of a tool. ``nine_char_ids``: the id of a tool call has nine letters and digits.
    ``thought_signatures``: a tool call goes back with the signature that it came with.

    ``hosts`` and ``port`` are the addresses that it is known by. ``key_header`` carries the key; the scheme
    ``Bearer`` goes before it in ``authorization`` alone.
    """

    name: str
    fields: Names
    messages: Mapping[str, Names]
    calls: Names
    renames: Mapping[str, str]
    roles: Mapping[str, str] = msgspec.field(default_factory=dict)
    functions: bool = True
    system: Literal["many", "first", "one"] = "many"
    alternate: bool = False
    user_ends: bool = False
    answer_follows_tool: bool = False
    nine_char_ids: bool = False
    thought_signatures: bool = False
    hosts: tuple[str, ...] = ()
    port: int | None = None
    key_header: str = "authorization"


def _names(names: str) -> Names:
    return frozenset(names.split())


def _by_role(*, system: str = "content", user: str = "content", **others: str) -> Mapping[str, Names]:
    names = {"system": system, "user": user, **others}
    return MappingProxyType({role: _names(fields) for role, fields in names.items()})


_MAX_TOKENS = MappingProxyType({"maxTokens": "max_tokens"})
_NO_MAX_COMPLETION_TOKENS = MappingProxyType({**_MAX_TOKENS, "max_completion_tokens": "max_tokens"})
_NO_DEVELOPER = MappingProxyType({"developer": "system"})
OPENAI = Provider(
    name="openai",
    fields=_names(
        "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens "
        "max_tokens metadata modalities model moderation n parallel_tool_calls prediction "
        "presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort "
        "response_format safety_identifier seed service_tier stop store stream stream_options temperature "
        "tool_choice tools top_logprobs top_p user verbosity web_search_options"
    ),
    messages=_by_role(
        assistant="audio content function_call name refusal tool_calls",
        developer="content name",
        function="content name",
        system="content name",
        tool="content tool_call_id",
        user="content name",
    ),
    calls=_names("custom function id type"),
    renames=_MAX_TOKENS,
)
"""The types of its SDK, 3.51. It answers 400 to an unknown name at the top level; some models do so
for unknown names in a message too."""

AZURE = replace(
    OPENAI,
    name="azure",
    fields=OPENAI.fields | _names("data_sources user_security_context"),
    key_header="api-key",
)
"""OpenAI's names and two of its own (REST reference, ``data_sources`` and ``user_security_context``)."""

ANY = replace(OPENAI, name="any")
"""OpenAI's names, and those that a configuration adds."""

GROQ = Provider(
    name="groq",
    fields=_names(
        "citation_options compound_custom disable_tool_validation documents exclude_domains "
        "frequency_penalty function_call functions include_domains include_reasoning "
        "max_completion_tokens max_tokens model parallel_tool_calls presence_penalty reasoning_effort "
        "reasoning_format response_format search_settings seed service_tier stop stream stream_options "
        "temperature tool_choice tools top_p user"
    ),
    messages=_by_role(
        assistant="content function_call tool_calls",
        function="content name",
        tool="content tool_call_id",
    ),
    calls=_names("function id type"),
    renames=_MAX_TOKENS,
    roles=_NO_DEVELOPER,
    hosts=("api.groq.com", "api.cerebras.ai"),
)
"""Its API reference; its page on OpenAI compatibility lists what gets a 400: ``logprobs``,
``logit_bias``, ``top_logprobs``, a message's ``name``, and any ``n`` but 1. Unknown names get a 400 at
every level, ``store`` and ``metadata`` among them. Cerebras is as strict, and takes this list."""

MISTRAL = Provider(
    name="mistral",
    fields=_names(
        "frequency_penalty guardrails max_tokens model n parallel_tool_calls prediction presence_penalty "
        "prompt_cache_key prompt_mode random_seed reasoning_effort response_format safe_prompt stop "
        "stream temperature tool_choice tools top_p"
    ),
    messages=_by_role(assistant="content prefix tool_calls", tool="content name tool_call_id"),
    calls=_names("function id index type"),
    renames=MappingProxyType({**_NO_MAX_COMPLETION_TOKENS, "seed": "random_seed"}),
    roles=_NO_DEVELOPER,
    functions=False,
    system="first",
    user_ends=True,
    answer_follows_tool=True,
    nine_char_ids=True,
    hosts=("api.mistral.ai",),
)
"""``ChatCompletionRequest`` and the message models of its SDK; unknown names get a 422 at every level.
A system message after the start, a user after a tool, and an answer at the end are refused (code 3230), not
by every model. So are ids of tool calls in any other form than its own (code 3280): other vendors', then."""

GEMINI = Provider(
    name="gemini",
    fields=_names(
        "extra_body max_tokens model n presence_penalty reasoning_effort response_format stop stream "
        "stream_options temperature tool_choice tools top_p"
    ),
    messages=_by_role(assistant="content tool_calls", tool="content name tool_call_id"),
    calls=_names("extra_content function id type"),
    renames=_NO_MAX_COMPLETION_TOKENS,
    roles=_NO_DEVELOPER,
    functions=False,
    system="one",
    user_ends=True,
    thought_signatures=True,
    hosts=("generativelanguage.googleapis.com",),
)
"""Google's list for its OpenAI endpoint, less what AI Studio answers "Cannot find field" to
(``frequency_penalty``, ``seed``, ``store``, ``metadata``, ``prompt_cache_key``) or has refused
(``parallel_tool_calls``). A thought signature comes in ``extra_content.google.thought_signature`` of a tool
call and must return there; nothing else may stand there. A request ends with the user or a tool. One system
instruction: several are joined out of caution.
"""

ANTHROPIC = Provider(
    name="anthropic",
    fields=_names(
        "frequency_penalty max_completion_tokens max_tokens model parallel_tool_calls presence_penalty "
        "reasoning_effort response_format seed stop stream stream_options temperature thinking "
        "tool_choice tools top_p"
    ),
    messages=_by_role(assistant="content tool_calls", tool="content tool_call_id"),
    calls=_names("function id type"),
    renames=_MAX_TOKENS,
    roles=_NO_DEVELOPER,
    functions=False,
    system="first",
    alternate=True,
    user_ends=True,
    hosts=("api.anthropic.com",),
)
"""Its page on OpenAI SDK compatibility. System messages are moved to the start, a message's
``name`` and ``refusal`` have no effect, ``n`` must be 1, and what only identifies people has none either.
Models since Claude 4.6 refuse an answer at the end; older ones want the user to begin."""

VLLM = Provider(
    name="vllm",
    fields=_names(
        "add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt "
        "chat_template_kwargs continue_final_message documents echo frequency_penalty guided_choice "
        "guided_decoding_backend guided_grammar guided_json guided_regex guided_whitespace_pattern "
        "ignore_eos include_reasoning include_stop_str_in_output length_penalty logit_bias "
        "logprob_token_ids logprobs max_completion_tokens max_tokens media_io_kwargs min_p min_tokens "
        "mm_processor_kwargs model n parallel_tool_calls presence_penalty priority prompt_logprobs "
        "reasoning_effort repetition_detection repetition_penalty response_format seed "
        "skip_special_tokens spaces_between_special_tokens stop stop_token_ids stream stream_interval "
        "stream_options structured_outputs temperature thinking_token_budget tool_choice tools top_k "
        "top_logprobs top_p truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs"
    ),
    messages=_by_role(
        assistant="content reasoning reasoning_content tool_calls", tool="content name tool_call_id"
    ),
    calls=_names("function id type"),
    renames=_MAX_TOKENS,
    roles=_NO_DEVELOPER,
    functions=False,
    system="one",
    alternate=True,
)
"""``ChatCompletionRequest`` of its source, ``guided_*`` for versions before 0.12. Left out are names that
steer the server rather than the answer (``chat_template``, ``kv_transfer_params``, ``request_id``,
``session_id``, …). The order of roles is the chat template's: those of Qwen want one system message at the
start, those of Gemma and Mistral alternation. Its Mistral tokenizer refuses a user's ``name``."""

OLLAMA = replace(
    VLLM,
    name="ollama",
    fields=_names(
        "frequency_penalty logprobs max_tokens model presence_penalty reasoning reasoning_effort "
        "response_format seed stop stream stream_options temperature tool_choice tools top_logprobs top_p"
    ),
    messages=_by_role(assistant="content tool_calls", tool="content name tool_call_id"),
    renames=_NO_MAX_COMPLETION_TOKENS,
    port=11434,
)
"""The request and the message of its source. It refuses no unknown name, and so it passes over
``max_completion_tokens`` in silence, and a model's template over the role ``developer``. The order is the
template's, as with vLLM."""

PROVIDERS: Mapping[str, Provider] = MappingProxyType(
    {kind.name: kind for kind in (OPENAI, AZURE, GROQ, MISTRAL, GEMINI, ANTHROPIC, VLLM, OLLAMA, ANY)}
)


def provider_at(host: str, port: int | None) -> str | None:
    """The name of the provider that is known by this address; ``None`` for any other address."""
    for provider in PROVIDERS.values():
        if host in provider.hosts or (port is not None and port == provider.port):
            return provider.name
    return None
