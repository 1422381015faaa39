#!/usr/bin/env python3
"""Write tests/golden/wire/prompts.jsonl and answers.jsonl: what DeepSeek's own package makes of
requests and of texts of the model, in three protocols.

prompts: a request and the prompt that the package renders for it, with what it reads of the other
fields. Where this project is wider on purpose (docs/api.md), no case is made.
answers: a text of the model, and what the package's events say when joined.

usage: wire_recipe.py OUT_FOLDER        (needs: pip install deepseek-recipe==0.2.0)
"""
import json
import random
import sys

import deepseek_recipe as R

MODELS = {"0731": "DeepSeek-V4-Pro", "4.1": "DeepSeek-V4.1-Flash"}
REQUESTS = {"chat": R.ChatCompletionRequest, "responses": R.ResponsesRequest,
            "messages": R.MessagesRequest}
TEXTS = ["Hi", "What is 2 < 3?\n", "Grüße 👋", "", "a\n\nb", "<think>no</think>", "x<｜User｜>y", "{\"a\": 1.0}", "tab\there",
         "<｜DSML｜tool_calls>", "\\u0041 \"q\" 'r'", "日本語のテキスト"]
VALUES = ["x", "", "a \"b\"\nc", "</b>", 1, -0.5, 12345678901234567890, True, False, None, [], {}, [1, {"k": "v"}], "é"]
SCHEMAS = [
    {"type": "object"},
    {"type": "object", "properties": {"path": {"type": "string", "description": "Where é"}}, "required": ["path"]},
    {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}, "deep": {"type": "array", "items": {"type": "number"}}},
     "additionalProperties": False, "required": ["n", "deep"]},
]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.calls = 0

    def some(self, chance):
        return self.r.random() < chance

    def text(self):
        return " ".join(self.r.choice(TEXTS) for _ in range(self.r.randint(1, 2)))

    def arguments(self):
        return {self.r.choice(["path", "n", "deep", "ü \"", "arguments", "input"]): self.r.choice(VALUES)
                for _ in range(self.r.randint(0, 3))}

    def turns(self):
        """A conversation free of any protocol: ("user", texts), ("assistant", thoughts, text, calls), ("results", ..)."""
        out = []
        for _ in range(self.r.randint(0, 3)):
            out.append(("user", [self.text() for _ in range(self.r.randint(1, 2))]))
            calls = []
            if self.tools and self.some(0.6):
                for _ in range(self.r.randint(1, 3)):
                    self.calls += 1
                    calls.append((f"call_{self.calls}", self.r.choice(self.tools)[0], self.arguments()))
            text = self.text() if self.some(0.7) or not calls else ""
            thoughts = self.text() if self.some(0.6) else None
            out.append(("assistant", thoughts, text, calls))
            if calls:
                results = [(c[0], self.text()) for c in calls]
                self.r.shuffle(results)
                out.append(("results", results, self.text() if self.some(0.4) else None))
        if not out or out[-1][0] != "results":
            out.append(("user", [self.text()]))
        return out

    def request(self, protocol):
        names = ["read_file", "write-file", "f", "search_2"]
        self.r.shuffle(names)
        self.tools = [(n, self.r.choice([None, "Does things", "Zeigt \"é\" <b>\n"]), self.r.choice(SCHEMAS))
                      for n in names[:self.r.randint(0, 3)]]
        body = {}
        if self.some(0.5):
            body["stream"] = self.some(0.5)
        getattr(self, protocol)(body)
        return body

    def common(self, body, tokens):
        if tokens:
            body[tokens] = self.r.randint(1, 5000)
        if self.some(0.3):
            body["temperature"] = self.r.choice([0, 0.5, 1.0])
        if self.some(0.3):
            body["top_p"] = self.r.choice([0.5, 1])

    def chat(self, body):
        messages = []
        parts = lambda texts: texts[0] if len(texts) == 1 and self.some(0.6) else [{"type": "text", "text": t} for t in texts]
        if self.some(0.5):
            messages.append({"role": "system", "content": parts([self.text() for _ in range(self.r.randint(1, 2))])})
        if self.some(0.2):
            messages.append({"role": "system", "content": self.text()})
        for turn in self.turns():
            if turn[0] == "user":
                messages.append({"role": "user", "content": parts(turn[1])})
            elif turn[0] == "assistant":
                message = {"role": "assistant", "content": turn[2] or (None if turn[3] else "")}
                if turn[1] is not None:
                    message["reasoning_content"] = turn[1]
                if turn[3]:
                    message["tool_calls"] = [{"id": i, "type": "function", "function": {
                        "name": n, "arguments": json.dumps(a, ensure_ascii=self.some(0.5))}} for i, n, a in turn[3]]
                messages.append(message)
            else:
                messages += [{"role": "tool", "tool_call_id": i, "content": parts([t])} for i, t in turn[1]]
                if turn[2] is not None:
                    messages.append({"role": "user", "content": turn[2]})
        if self.some(0.15):
            messages.append({"role": "system", "content": self.text()})
        if messages[-1]["role"] == "user" and self.some(0.1):
            messages.append({"role": "assistant", "content": "Well, ", "prefix": True})
        body["messages"] = messages
        if self.tools:
            body["tools"] = [{"type": "function", "function": {k: v for k, v in
                              [("name", n), ("description", d), ("parameters", p)] if v is not None}} for n, d, p in self.tools]
            body["tool_choice"] = self.r.choice(["auto", "none", None])
        self.common(body, self.r.choice([None, "max_tokens"]))
        if self.some(0.3):
            body["stop"] = self.r.choice(["END", ["a", "bc"]])
        if self.some(0.5):
            body["reasoning_effort"] = self.r.choice(["none", "low", "medium", "high", "xhigh", "max"])
        elif self.some(0.5):
            body["thinking"] = {"type": self.r.choice(["enabled", "disabled"])}
        if not self.tools and self.some(0.2):
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": self.r.choice(SCHEMAS)}}

    def messages(self, body):
        block = lambda t: {"type": "text", "text": t}
        blocks = lambda texts: texts[0] if len(texts) == 1 and self.some(0.5) else [block(t) for t in texts]
        if self.some(0.6):
            body["system"] = blocks([self.text() for _ in range(self.r.randint(1, 2))])
        messages = []
        for turn in self.turns():
            if turn[0] == "user":
                messages.append({"role": "user", "content": blocks(turn[1])})
            elif turn[0] == "assistant":
                content = []
                if turn[1] is not None:
                    content.append({"type": "thinking", "thinking": turn[1], "signature": "s"})
                if turn[2]:
                    content.append(block(turn[2]))
                content += [{"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in turn[3]]
                messages.append({"role": "assistant", "content": content or ""})
            else:
                content = [{"type": "tool_result", "tool_use_id": i, "content": self.r.choice([t, [block(t)]])} for i, t in turn[1]]
                if turn[2] is not None:
                    content.append(block(turn[2]))
                messages.append({"role": "user", "content": content})
        if len(messages) > 2 and messages[-1]["role"] == "user" and self.some(0.3):
            messages.insert(len(messages) - 1 if messages[-2]["role"] == "assistant" and isinstance(messages[-1]["content"], str)
                            else len(messages), {"role": "system", "content": self.text()})
        body["messages"] = messages
        if self.tools:
            body["tools"] = [{k: v for k, v in [("name", n), ("description", d), ("input_schema", p)] if v is not None}
                             for n, d, p in self.tools]
            if self.some(0.5):
                body["tool_choice"] = {"type": self.r.choice(["auto", "none"])}
        self.common(body, "max_tokens")
        if self.some(0.3):
            body["stop_sequences"] = ["a", "bc"]
        if self.some(0.4):
            body["thinking"] = self.r.choice([{"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"}])
        if self.some(0.3):
            body["output_config"] = {"effort": self.r.choice(["low", "medium", "high", "max"])}

    def responses(self, body):
        items = []
        part = lambda kind, t: {"type": kind, "text": t}
        if self.some(0.5):
            body["instructions"] = self.text()
        for turn in self.turns():
            if turn[0] == "user":
                content = turn[1][0] if len(turn[1]) == 1 and self.some(0.5) else [part("input_text", t) for t in turn[1]]
                items.append({"role": "user", "content": content} | ({"type": "message"} if self.some(0.5) else {}))
            elif turn[0] == "assistant":
                if turn[1] is not None:
                    items.append({"type": "reasoning", "id": "rs_1", "summary": [], "content": [part("reasoning_text", turn[1])]})
                if turn[2]:
                    items.append({"type": "message", "role": "assistant", "content": [part("output_text", turn[2])]})
                items += [{"type": "function_call", "call_id": i, "name": n, "arguments": json.dumps(a)} for i, n, a in turn[3]]
            else:
                items += [{"type": "function_call_output", "call_id": i, "output": self.r.choice([t, [part("input_text", t)]])}
                          for i, t in turn[1]]
                if turn[2] is not None:
                    items.append({"role": "user", "content": turn[2]})
        body["input"] = items
        if len(items) == 1 and isinstance(items[0]["content"], str) and self.some(0.5):
            body["input"] = items[0]["content"]
        if self.tools:
            functions = [{"type": "function"} | {k: v for k, v in [("name", n), ("description", d), ("parameters", p)] if v is not None}
                         for n, d, p in self.tools]
            if self.some(0.3):
                functions.append({"type": "namespace", "name": "fs", "description": "Files", "tools": [
                    {"type": "function", "name": "stat", "parameters": SCHEMAS[1]}]})
            body["tools"] = functions
            if self.some(0.5):
                body["tool_choice"] = self.r.choice(["auto", "none"])
        self.common(body, self.r.choice([None, "max_output_tokens"]))
        if self.some(0.5):
            body["reasoning"] = {"effort": self.r.choice(["none", "low", "medium", "high", "xhigh", "max"])}
        if not self.tools and self.some(0.2):
            body["text"] = {"format": {"type": "json_schema", "name": "n", "schema": self.r.choice(SCHEMAS)}}


def prompts(out):
    refused = 0
    for at in range(270):
        protocol = ["chat", "messages", "responses"][at % 3]
        release = ["0731", "4.1"][at // 3 % 2]
        body = Maker(at).request(protocol)
        # Written and read as text: numbers beyond 64 bits are none that the package's binding takes.
        try:
            request = REQUESTS[protocol](json.dumps(body | {"model": MODELS[release]}, ensure_ascii=False))
            converted = request.convert(R.ConversionOptions())
        except R.ConversionError as error:
            refused += 1
            print("refused:", protocol, at, error.body, file=sys.stderr)
            continue
        encoding = {"0731": R.DeepseekV4Encoding, "4.1": R.DeepseekV41Encoding}[release]()
        rendered = encoding.render_conversation(converted.conversation)
        case = dict(protocol=protocol, release=release, request=body, prompt=rendered.prompt,
                    specials=[rendered.prompt[a:b] for a, b in rendered.special_ranges],
                    thinking=converted.conversation.thinking_mode, stream=converted.stream,
                    max_tokens=converted.inference_options.max_tokens,
                    stop=converted.parsing_options.stop_sequences,
                    calls=converted.parsing_options.parse_tool_calls)
        out.write(json.dumps(case, ensure_ascii=False) + "\n")
    print("refused", refused, file=sys.stderr)


D = "｜DSML｜"


def call_text(r, name, broken):
    text = f'<{D}invoke name="{name}">\n'
    for key in r.sample(["a", "b_2", "arguments", "ü"], r.randint(0, 3)):
        value = r.choice(VALUES)
        string = isinstance(value, str)
        text += f'<{D}parameter name="{key}" string="{str(string).lower()}">{value if string else json.dumps(value)}</{D}parameter>\n'
    return text + f"</{D}invoke>\n"


def answer_text(r, thinking):
    text = ""
    if thinking:
        text += r.choice(["", "why", "because\n\nof 2 < 3", "<b>"]) + (r.choice(["</think>"]) if r.random() < 0.9 else "")
    if r.random() < 0.7:
        text += r.choice(["Hello", "2 < 3", "a\nb", "</b> END of it", "Grüße 👋 bc", "```\n<x>\n```"])
    if r.random() < 0.6:
        calls = "".join(call_text(r, r.choice(["f", "g"]), False) for _ in range(r.randint(1, 3)))
        text += f"\n\n<{D}tool_calls>\n{calls}</{D}tool_calls>"
    elif r.random() < 0.3:
        text += r.choice(["<", "</", "<｜", "x\n<"])
    return text


def joined(protocol, events):
    said = dict(reasoning="", text="", calls=[], end=None)
    calls = {}
    for event in map(json.loads, events):
        if protocol == "chat":
            for choice in event["choices"]:
                delta = choice["delta"]
                said["reasoning"] += delta.get("reasoning_content") or ""
                said["text"] += delta.get("content") or ""
                for call in delta.get("tool_calls") or []:
                    entry = calls.setdefault(call["index"], ["", ""])
                    entry[0] += call["function"].get("name", "")
                    entry[1] += call["function"].get("arguments", "")
                said["end"] = choice["finish_reason"] or said["end"]
        elif protocol == "messages":
            if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
                calls[event["index"]] = [event["content_block"]["name"], ""]
            if event["type"] == "content_block_delta":
                delta = event["delta"]
                said["reasoning"] += delta.get("thinking", "")
                said["text"] += delta.get("text", "")
                if delta["type"] == "input_json_delta":
                    calls[event["index"]][1] += delta["partial_json"]
            if event["type"] == "message_delta":
                said["end"] = event["delta"]["stop_reason"]
        elif event["type"] in ("response.completed", "response.incomplete"):
            said["end"] = event["response"]["status"]
            for item in event["response"]["output"]:
                if item["type"] == "function_call":
                    calls[len(calls)] = [item["name"], item["arguments"]]
                for part in item.get("content", []):
                    said["reasoning" if item["type"] == "reasoning" else "text"] += part["text"]
    said["calls"] = [calls[at] for at in sorted(calls)]
    return said


def generator(protocol):
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    model = MODELS["0731"]
    if protocol == "messages":
        return R.MessagesChunkGenerator("x", model, True)
    kind = REQUESTS[protocol]
    body = {"chat": {"messages": [{"role": "user", "content": "u"}], "tools": [{"type": "function", "function": tool}]},
            "responses": {"input": "u", "tools": [tool]}}[protocol]
    converted = kind(body | {"model": model, "stream": True}).convert(R.ConversionOptions())
    return kind.chunk_generator(converted, "x", model)


def answers(out):
    for at in range(300):
        r = random.Random(1000 + at)
        thinking = r.random() < 0.6
        text = answer_text(r, thinking)
        stop = r.choice([[], [], ["END"], ["bc", "2 <"]])
        finish = r.choice(["stop", "stop", "length"])
        if finish == "length" and D in text:
            # Cut off within a call the package's answer is not ours.
            finish = "stop"
        stage = R.ThinkingInitialStage.ReasoningStart if thinking else None
        case = dict(text=text, thinking=thinking, stop=stop, finish=finish)
        for protocol in REQUESTS:
            options = R.ParsingOptions(parse_tool_calls=True, thinking_initial_stage=stage, stop_sequences=stop)
            stream = R.StreamProcessor(generator(protocol), options)
            usage = R.PromptUsage(prompt_tokens=10, prompt_cache_hit_tokens=4)
            events = stream.push(R.InferenceChunk.ready(prompt_usage=usage))
            for piece in [text[i:i + 5] for i in range(0, len(text), 5)]:
                if not stream.finished:
                    events += stream.push(R.InferenceChunk.text(piece, 1))
            if not stream.finished:
                reason = {"stop": R.InferenceFinishReason.Stop, "length": R.InferenceFinishReason.Length}[finish]
                events += stream.push(R.InferenceChunk.finish(reason))
            if not stream.finished:
                events += stream.finish()
            case[protocol] = joined(protocol, [event.to_json() for event in events])
        out.write(json.dumps(case, ensure_ascii=False) + "\n")


def main():
    folder = sys.argv[1]
    with open(f"{folder}/prompts.jsonl", "w", encoding="utf-8") as out:
        prompts(out)
    with open(f"{folder}/answers.jsonl", "w", encoding="utf-8") as out:
        answers(out)


if __name__ == "__main__":
    main()
