"""The providers of models: the fields that each API accepts, and how requests are adapted to it.

To add one, define it here and add it to ``PROVIDERS``. The setting ``accepts``, its schema and the messages
of ``check`` are derived from that.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec
from msgspec.structs import replace

Names = frozenset[str]


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """The field names that a provider's API accepts, and its rules for the conversation.

    ``fields`` are those of the top level, ``messages`` those of a message by its role, and ``calls`` those of
    an entry of ``tool_calls``. ``renames`` maps a client's top-level names to the provider's, and ``roles``
    maps roles. A provider without ``functions`` gets tools instead.

    ``system`` is where system messages are allowed: anywhere (``many``), only at the start (``first``), or
    as a single message at the start (``one``). ``alternate``: user and assistant take turns, and the user
    begins. ``user_ends``: an answer may not be the last message. ``answer_follows_tool``: the user may not
    follow the result of a tool. ``nine_char_ids``: the id of a tool call has nine letters and digits.
    ``thought_signatures``: a tool call is sent back with the signature that it came with.

    ``hosts`` and ``port`` identify the provider's addresses. ``key_header`` is the header of the key, which
    has the scheme ``Bearer`` only in ``authorization``.
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
"""From the types of OpenAI's SDK 3.51. The API answers 400 to an unknown name at the top level; some models
do so for unknown names in a message too."""

AZURE = replace(
    OPENAI,
    name="azure",
    fields=OPENAI.fields | _names("data_sources user_security_context"),
    key_header="api-key",
)
"""OpenAI's names, and ``data_sources`` and ``user_security_context`` from Azure's REST reference."""

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
"""From Groq's API reference. Its page on OpenAI compatibility lists what gets a 400: ``logprobs``,
``logit_bias``, ``top_logprobs``, a message's ``name``, and any ``n`` but 1. Unknown names get a 400 at
every level, such as ``store`` and ``metadata``. Cerebras is as strict, and accepts the same names."""

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
"""From ``ChatCompletionRequest`` and the message models of Mistral's SDK. Unknown names get a 422 at every
level. Some models refuse a system message after the start, a user after a tool, and an answer at the end
(code 3230). Ids of tool calls in another form than Mistral's, such as other vendors', are refused as well
(code 3280)."""

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
"""From Google's list for its OpenAI endpoint, without names that AI Studio does not know
(``frequency_penalty``, ``seed``, ``store``, ``metadata``, ``prompt_cache_key``: "Cannot find field") or has
refused (``parallel_tool_calls``). A thought signature comes in ``extra_content.google.thought_signature`` of
a tool call and must be sent back there; nothing else is allowed there. A request must end with the user or a
tool. There is one system instruction; several are joined as a precaution.
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
"""From Anthropic's page on OpenAI SDK compatibility. The API moves system messages to the start, and ``n``
must be 1. A message's ``name`` and ``refusal`` have no effect, nor have fields that only identify people.
Models since Claude 4.6 refuse an answer at the end; older ones require that the user begins."""

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
"""From ``ChatCompletionRequest`` in vLLM's source; ``guided_*`` are for versions before 0.12. Names that
control the server rather than the answer are left out (``chat_template``, ``kv_transfer_params``,
``request_id``, ``session_id``, …). The order of roles depends on the chat template: Qwen's require one
system message at the start, and those of Gemma and Mistral require alternation. vLLM's Mistral tokenizer
refuses a user's ``name``."""

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
"""From the request and the message in Ollama's source. It ignores unknown names, so that
``max_completion_tokens`` has no effect, and a model's template ignores the role ``developer``. The order of
roles depends on the template, as with vLLM."""

PROVIDERS: Mapping[str, Provider] = MappingProxyType(
    {kind.name: kind for kind in (OPENAI, AZURE, GROQ, MISTRAL, GEMINI, ANTHROPIC, VLLM, OLLAMA, ANY)}
)


def provider_at(host: str, port: int | None) -> str | None:
    """Returns the name of the provider at an address; ``None`` for unknown addresses."""
    for provider in PROVIDERS.values():
        if host in provider.hosts or (port is not None and port == provider.port):
            return provider.name
    return None
