"""Runs the OpenAI and Anthropic SDKs, with their stream helpers, against `ironstar serve`.

Usage: clients.py SCRIPTED_URL NANO_URL. The first server plays play.json beside this file, the
second has the bundled nano model. Each check is a function; one that fails ends the run with a
traceback, and the exit code is that of the interpreter.
"""

import json
import sys
import time

import anthropic
import openai

SCRIPTED, NANO = sys.argv[1], sys.argv[2]
TEXT = "Hello, wörld \U0001f44b!"
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
CHAT_TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]
STRICT_TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER, "strict": True}}
]
MESSAGE_TOOLS = [{"name": "get_weather", "input_schema": WEATHER}]
RESPONSE_TOOLS = [
    {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": False}
]


def openai_at(url):
    return openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=300)


def anthropic_at(url):
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=300)


def user(text):
    return [{"role": "user", "content": text}]


def chat_whole_and_streamed(client):
    whole = client.chat.completions.create(model="m", messages=user("hi"))
    assert whole.choices[0].message.content == TEXT, whole
    assert whole.choices[0].message.reasoning_content == "I think about it."
    with client.chat.completions.stream(
        model="m", messages=user("hi"), stream_options={"include_usage": True}
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert final.choices[0].message.content == TEXT
    assert final.choices[0].finish_reason == "stop"
    assert final.usage.completion_tokens == whole.usage.completion_tokens
    assert "content.delta" in kinds and kinds[-1] != "error"


def chat_tool_loop(client, tools=CHAT_TOOLS):
    messages = user("weather")
    with client.chat.completions.stream(model="m", messages=messages, tools=tools) as stream:
        for _ in stream:
            pass
        first = stream.get_final_completion()
    call = first.choices[0].message.tool_calls[0]
    assert first.choices[0].finish_reason == "tool_calls"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    messages.append(first.choices[0].message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "25 degrees"})
    second = client.chat.completions.create(model="m", messages=messages, tools=tools)
    assert second.choices[0].message.content == "It is warm in Paris."
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached > first_prompt(client, tools), (cached, second.usage)


def first_prompt(client, tools):
    answer = client.chat.completions.create(model="m", messages=user("weather"), tools=tools)
    return answer.usage.prompt_tokens


def chat_parallel_calls(client):
    stream = client.chat.completions.create(
        model="m", messages=user("two calls"), tools=CHAT_TOOLS, stream=True
    )
    calls = {}
    for chunk in stream:
        for choice in chunk.choices:
            for part in choice.delta.tool_calls or []:
                entry = calls.setdefault(part.index, {"ids": [], "text": ""})
                entry["ids"] += [part.id] if part.id else []
                entry["text"] += part.function.arguments or ""
    assert sorted(calls) == [0, 1], calls
    assert [json.loads(calls[i]["text"])["city"] for i in (0, 1)] == ["Paris", "Rome"]
    assert all(len(entry["ids"]) == 1 for entry in calls.values())


def chat_errors(client):
    for make, kind in [
        (lambda: client.chat.completions.create(model="m", messages=[]), openai.BadRequestError),
        (
            lambda: client.chat.completions.create(model="m", messages=user("fail")),
            openai.InternalServerError,
        ),
        (
            lambda: client.chat.completions.create(model="m", messages=user("long " * 70000)),
            openai.BadRequestError,
        ),
        (lambda: client.embeddings.create(model="m", input="x"), openai.BadRequestError),
    ]:
        try:
            make()
        except kind as error:
            last = error
        else:
            raise AssertionError(f"{kind} was wanted")
    assert last.body["code"] == "unsupported", last.body
    try:
        client.chat.completions.create(model="m", messages=user("long " * 70000), stream=True)
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded"
        assert "maximum context length" in error.message
    else:
        raise AssertionError("an overflow is an error before the stream")
    stream = client.chat.completions.create(model="m", messages=user("fail"), stream=True)
    try:
        for _ in stream:
            pass
    except openai.APIError as error:
        assert "fault" in str(error) or error.code == "engine_failed", error
    else:
        raise AssertionError("a fault within a stream is an error")


def leaving_early(client, url):
    stream = client.chat.completions.create(model="m", messages=user("endless"), stream=True)
    for index, _ in enumerate(stream):
        if index == 5:
            stream.close()
            break
    import urllib.request

    # A minute, on a quiet machine: only what hangs takes so long.
    for _ in range(3000):
        health = json.load(urllib.request.urlopen(url + "/health"))
        if health["requests_running"] == 0:
            return
        time.sleep(0.02)
    raise AssertionError("the answer goes on though nobody reads it")


def completions(client):
    whole = client.completions.create(model="m", prompt="Once", max_tokens=4, logprobs=2, echo=True)
    choice = whole.choices[0]
    assert choice.text.startswith("Once"), choice
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs)
    assert choice.logprobs.token_logprobs[0] is None or choice.logprobs.token_logprobs[0] <= 0
    text = "".join(
        chunk.choices[0].text
        for chunk in client.completions.create(
            model="m", prompt=[5, 6, 7], max_tokens=4, stream=True
        )
        if chunk.choices
    )
    assert text
    assert client.models.list().data[0].id


def responses(client):
    with client.responses.stream(model="m", input="hi", reasoning={"summary": "auto"}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == TEXT, final
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    whole = client.responses.create(model="m", input="hi")
    assert whole.output_text == TEXT
    again = client.responses.create(model="m", input="hi again", previous_response_id=whole.id)
    assert again.usage.input_tokens_details.cached_tokens > 0, again.usage
    assert client.responses.retrieve(whole.id).output_text == TEXT
    client.responses.delete(whole.id)


def responses_tool_loop(client):
    history = [{"role": "user", "content": "weather"}]
    with client.responses.stream(
        model="m", input=history, tools=RESPONSE_TOOLS, store=False
    ) as stream:
        done = [event.item for event in stream if event.type == "response.output_item.done"]
        final = stream.get_final_response()
    call = [item for item in done if item.type == "function_call"][0]
    assert json.loads(call.arguments) == {"city": "Paris"}
    history += [
        item.model_dump(exclude_none=True) for item in final.output if item.type == "function_call"
    ]
    history.append(
        {"type": "function_call_output", "call_id": call.call_id, "output": "25 degrees"}
    )
    second = client.responses.create(model="m", input=history, tools=RESPONSE_TOOLS, store=False)
    assert second.output_text == "It is warm in Paris.", second


def messages(client):
    with client.messages.stream(
        model="m",
        max_tokens=900,
        messages=user("hi"),
        thinking={"type": "enabled", "budget_tokens": 1024},
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert [block.type for block in final.content] == ["thinking", "text"], final
    assert final.content[1].text == TEXT and final.stop_reason == "end_turn"
    whole = client.messages.create(
        model="m",
        max_tokens=900,
        messages=user("hi"),
        thinking={"type": "enabled", "budget_tokens": 1024},
    )
    assert whole.content[1].text == TEXT
    assert whole.usage.output_tokens == final.usage.output_tokens
    counted = client.messages.count_tokens(
        model="m", messages=user("hi"), thinking={"type": "enabled", "budget_tokens": 1024}
    )
    used = whole.usage
    assert counted.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0) + (
        used.cache_creation_input_tokens or 0
    ), (counted, used)


def messages_tool_loop(client):
    history = user("weather")
    with client.messages.stream(
        model="m", max_tokens=900, messages=history, tools=MESSAGE_TOOLS
    ) as stream:
        for _ in stream:
            pass
        first = stream.get_final_message()
    use = [block for block in first.content if block.type == "tool_use"][0]
    assert use.input == {"city": "Paris"} and first.stop_reason == "tool_use"
    history.append(
        {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in first.content]}
    )
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "25 degrees"}
    history.append({"role": "user", "content": [result]})
    second = client.messages.create(
        model="m", max_tokens=900, messages=history, tools=MESSAGE_TOOLS
    )
    assert second.content[-1].text == "It is warm in Paris.", second
    assert second.usage.cache_read_input_tokens > 0, second.usage


def messages_errors(client):
    try:
        client.messages.create(model="m", max_tokens=90, messages=user("long " * 70000))
    except anthropic.BadRequestError as error:
        assert "prompt is too long" in str(error), error
    else:
        raise AssertionError("an overflow is an error")
    try:
        with client.messages.stream(model="m", max_tokens=90, messages=user("fail")) as stream:
            for _ in stream:
                pass
    except anthropic.APIError:
        pass
    else:
        raise AssertionError("a fault within a stream is an error")


def nano_speaks_all_protocols(client, messages_client):
    off = {"thinking": {"type": "disabled"}}
    question = "Tell me a story about a fox."
    asked = {"model": "m", "messages": user(question), "max_tokens": 40, "seed": 5}
    whole = client.chat.completions.create(**asked, extra_body=off)
    assert len(whole.choices[0].message.content) > 20, whole
    parts = client.chat.completions.create(**asked, extra_body=off, stream=True)
    text = "".join(c.choices[0].delta.content or "" for c in parts if c.choices)
    assert text == whole.choices[0].message.content, "the same seed gives the same answer"
    long = dict(asked, messages=user("Here is a list of words. " * 60 + question))
    client.chat.completions.create(**long, extra_body=off)
    again = client.chat.completions.create(**long, extra_body=off)
    assert again.usage.prompt_tokens_details.cached_tokens > 128, again.usage
    response = client.responses.create(
        model="m", input=question, max_output_tokens=40, reasoning={"effort": "none"}
    )
    assert len(response.output_text) > 20, response
    message = messages_client.messages.create(
        model="m", max_tokens=40, messages=user(question), thinking={"type": "disabled"}
    )
    assert len(message.content[0].text) > 20, message
    completion = client.completions.create(
        model="m", prompt="Once upon a time", max_tokens=12, logprobs=1, echo=True, temperature=0
    )
    logprobs = completion.choices[0].logprobs.token_logprobs
    assert all(logprob is None or logprob <= 0 for logprob in logprobs), logprobs


def nano_is_bound_by_grammars(client):
    off = {"thinking": {"type": "disabled"}}
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "kind": {"enum": ["cat", "dog"]},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "kind", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "pet", "schema": schema, "strict": True}}
    for seed in range(3):
        answer = client.chat.completions.create(
            model="m",
            messages=user("A pet as JSON."),
            response_format=form,
            seed=seed,
            max_tokens=200,
            extra_body=off,
        )
        pet = json.loads(answer.choices[0].message.content)
        assert set(pet) == {"name", "kind", "age"} and pet["kind"] in ("cat", "dog"), pet
        assert isinstance(pet["age"], int) and 0 <= pet["age"] <= 99, pet
        named = client.chat.completions.create(
            model="m",
            messages=user("hello"),
            tools=STRICT_TOOLS,
            seed=seed,
            max_tokens=200,
            tool_choice={"type": "function", "function": {"name": "get_weather"}},
            extra_body=off,
        )
        calls = named.choices[0].message.tool_calls
        assert calls and calls[0].function.name == "get_weather", named
        assert "city" in json.loads(calls[0].function.arguments), named
    try:
        bad = dict(
            form,
            json_schema={"name": "x", "strict": True, "schema": {"type": "string", "pattern": "("}},
        )
        client.chat.completions.create(model="m", messages=user("x"), response_format=bad)
    except openai.BadRequestError as error:
        assert error.code in ("unsupported", "invalid_value"), error.body
    else:
        raise AssertionError("a pattern that cannot be enforced is an error")


def main():
    scripted, nano = openai_at(SCRIPTED), openai_at(NANO)
    scripted_messages, nano_messages = anthropic_at(SCRIPTED), anthropic_at(NANO)
    checks = [
        (chat_whole_and_streamed, scripted),
        (chat_tool_loop, scripted),
        (chat_parallel_calls, scripted),
        (chat_errors, scripted),
        (leaving_early, scripted, SCRIPTED),
        (completions, scripted),
        (responses, scripted),
        (responses_tool_loop, scripted),
        (messages, scripted_messages),
        (messages_tool_loop, scripted_messages),
        (messages_errors, scripted_messages),
        (nano_speaks_all_protocols, nano, nano_messages),
        (nano_is_bound_by_grammars, nano),
    ]
    for check, *arguments in checks:
        begun = time.monotonic()
        check(*arguments)
        print(f"clients: {check.__name__}: ok in {time.monotonic() - begun:.1f} s", flush=True)


main()
