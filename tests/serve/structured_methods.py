"""What the clients of structured_clients.py offer to get objects.

Each client yields its methods: a name, the models, and the function that asks for a model with the fields of a request and returns an
object, or a list of objects. A name with "several calls" is that of a method that does not bound their number. `common`: the server's URL
and a key, as the openai package takes them."""

import asyncio
import json
import re

import openai
from structured_models import Address, AnyObject, Drawing, MODELS, Open, Tree

SAY = [{"role": "user", "content": "Say it."}]
SERIAL = {"parallel_tool_calls": False}
WITHOUT_RECURSION = [model for model in MODELS if model is not Tree]


def of_responses(fields):
    """The fields of a request to /v1/chat/completions as those of one to /v1/responses."""
    own = {"model": fields["model"], "temperature": fields["temperature"], "max_output_tokens": fields["max_tokens"]}
    return {**own, "input": "Say it.", "extra_body": {"seed": fields["seed"], "logit_bias": fields["logit_bias"]}}


def openai_methods(common):
    client, chat = openai.OpenAI(**common), openai.OpenAI(**common).chat.completions
    later, loop = openai.AsyncOpenAI(**common).chat.completions, asyncio.new_event_loop()

    def streamed(**fields):
        with chat.stream(messages=SAY, **fields) as stream:
            assert "chunk" in [event.type for event in stream]
            return stream.get_final_completion()

    def parsed(answer):
        return [choice.message.parsed for choice in answer.choices]

    def called(answer, most=None):
        calls = answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason == "tool_calls" and len(calls) <= (most or len(calls)), answer
        return [call.function.parsed_arguments for call in calls]

    def tools(model):
        return {"tools": [openai.pydantic_function_tool(one) for one in (model, Address)]}

    def named(model):
        return {"type": "function", "function": {"name": model.__name__}}

    yield "chat.completions.parse", MODELS, lambda m, f: parsed(chat.parse(messages=SAY, response_format=m, **f))
    yield "beta.chat.completions.parse", MODELS, lambda m, f: parsed(client.beta.chat.completions.parse(messages=SAY, response_format=m, **f))
    yield "AsyncOpenAI, parse, n=2", MODELS, lambda m, f: parsed(loop.run_until_complete(later.parse(messages=SAY, response_format=m, n=2, **f)))
    yield "chat.completions.stream", MODELS, lambda m, f: parsed(streamed(response_format=m, **f))
    for name, choice, more, most in (("several calls", lambda m: "required", {}, None), ("required, one call", lambda m: "required", SERIAL, 1), ("by name", named, {}, 1)):
        yield f"tools, {name}", MODELS, lambda m, f: called(chat.parse(messages=SAY, tool_choice=choice(m), **tools(m), **more, **f), most)
        yield f"tools, {name}, stream", MODELS, lambda m, f: called(streamed(tool_choice=choice(m), **tools(m), **more, **f), most)
    responses = client.responses

    def grown(**fields):
        with responses.stream(**fields) as stream:
            assert "response.output_item.done" in [event.type for event in stream]
            return stream.get_final_response()

    def calls_in(response):
        assert response.output and all(item.type == "function_call" for item in response.output), response
        return [item.parsed_arguments for item in response.output]

    def called_by_name(model):
        return {**tools(model), "tool_choice": {"type": "function", "name": model.__name__}}

    for name, ask in (("parse", responses.parse), ("stream", grown)):
        yield f"responses.{name}", MODELS, lambda m, f: ask(text_format=m, **of_responses(f)).output_parsed
        yield f"responses.{name}, tools, by name", MODELS, lambda m, f: calls_in(ask(**called_by_name(m), **of_responses(f)))
    yield "json_object", [AnyObject], lambda m, f: m.model_validate_json(chat.create(messages=SAY, response_format={"type": "json_object"}, **f).choices[0].message.content)


def vllm_methods(common):
    client = openai.OpenAI(**common)
    pattern, choices = r"[0-9]{3}-[a-f]{2,5}(, (yes|no))?", ["yes", "no", "maybe not"]

    def chat(body, fields):
        choice = client.chat.completions.create(messages=SAY, extra_body=body, **fields).choices[0]
        assert choice.finish_reason == "stop", choice
        return choice.message.content

    def stream(body, fields):
        return "".join(chunk.choices[0].text for chunk in client.completions.create(prompt="Say it.", extra_body=body, stream=True, **fields))

    def regex(text):
        return AnyObject() if re.fullmatch(pattern, text) else text

    def choice(text):
        return AnyObject() if text in choices else text

    for name, ask in (("chat", chat), ("completions, stream", stream)):
        for field, body in (("structured_outputs, json", lambda s: {"structured_outputs": {"json": s}}), ("guided_json", lambda s: {"guided_json": json.dumps(s)})):
            yield f"{field}, {name}", MODELS, lambda m, f: m.model_validate_json(ask(body(m.model_json_schema()), f))
        for kind, value, check in (("regex", pattern, regex), ("choice", choices, choice)):
            for body in ({"structured_outputs": {kind: value}}, {f"guided_{kind}": value}):
                yield f"{next(iter(body))}, {kind}, {name}", [AnyObject], lambda m, f: check(ask(body, f))
        closed = {"json": Open.model_json_schema(), "disable_additional_properties": True}
        yield f"disable_additional_properties, {name}", [Open], lambda m, f: m.model_validate_json(ask({"structured_outputs": closed}, f))
        yield f"structured_outputs, json_object, {name}", [AnyObject], lambda m, f: m.model_validate_json(ask({"structured_outputs": {"json_object": True}}, f))


def langchain_methods(common):
    from langchain_openai import ChatOpenAI

    def ask(chain, how):
        return chain.invoke("Say it.") if how == "invoke" else list(chain.stream("Say it."))[-1]

    def bound(model, fields, choice, **more):
        message = ChatOpenAI(**common, **fields).bind_tools([model, Address], tool_choice=choice, **more).invoke("Say it.")
        assert message.tool_calls and not message.invalid_tool_calls and (choice == "any" or len(message.tool_calls) == 1), message
        return [{model.__name__: model, "Address": Address}[call["name"]](**call["args"]) for call in message.tool_calls]

    for how in ("invoke", "stream"):
        for method, models in (("json_schema", MODELS), ("function_calling", WITHOUT_RECURSION)):  # of calls it drops references to themselves
            for strict in (None, True):
                yield f"{method}, strict={strict}, {how}", models, lambda m, f: ask(ChatOpenAI(**common, **f).with_structured_output(m, method=method, strict=strict), how)
        yield f"json_mode, {how}", [AnyObject], lambda m, f: m(**ask(ChatOpenAI(**common, **f).with_structured_output(None, method="json_mode"), how))

    def of_responses(fields):
        more = {name: fields[name] for name in ("seed", "logit_bias")}
        return {**{name: value for name, value in fields.items() if name not in more}, "extra_body": more, "use_responses_api": True}

    for how in ("invoke", "stream"):
        for method in ("json_schema", "function_calling"):  # streams of both drop references of a schema to itself
            models = MODELS if (how, method) == ("invoke", "json_schema") else WITHOUT_RECURSION
            yield f"responses, {method}, {how}", models, lambda m, f: ask(ChatOpenAI(**common, **of_responses(f)).with_structured_output(m, method=method), how)
    yield "bind_tools, any, several calls", WITHOUT_RECURSION, lambda m, f: bound(m, f, "any")
    yield "bind_tools, any, one call", WITHOUT_RECURSION, lambda m, f: bound(m, f, "any", **SERIAL)
    yield "bind_tools, by name", WITHOUT_RECURSION, lambda m, f: bound(m, f, m.__name__)


def instructor_methods(common):
    import instructor

    for mode in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "JSON"):  # JSON tells only the model of the schema, and asks for any object
        chat = instructor.from_openai(openai.OpenAI(**common), mode=instructor.Mode[mode]).chat.completions
        yield f"{mode}, create", [AnyObject] if mode == "JSON" else MODELS, lambda m, f: chat.create(response_model=m, messages=SAY, max_retries=0, **f)
        if mode != "JSON":
            some = [model for model in MODELS if model is not Drawing]  # its partial objects have no discriminators
            yield f"{mode}, create_partial", some, lambda m, f: m.model_validate(list(chat.create_partial(response_model=m, messages=SAY, max_retries=0, strict=False, **f))[-1].model_dump())


def llamaindex_methods(common):
    from llama_index.core.prompts import PromptTemplate
    from llama_index.llms.openai_like import OpenAILike

    prompt = PromptTemplate("Say {what}.")
    for way, models, flag in (("calls", WITHOUT_RECURSION, "is_function_calling_model"), ("schema", MODELS, "should_use_structured_outputs")):
        def model(fields):
            more = {name: fields[name] for name in ("seed", "logit_bias")}
            own = {name: value for name, value in fields.items() if name not in more}
            return OpenAILike(api_base=common["base_url"], api_key=common["api_key"], max_retries=0, is_chat_model=True, additional_kwargs=more, **own, **{flag: True})
        yield f"{way}, structured_predict", models, lambda m, f: model(f).structured_predict(m, prompt, what="it")
        yield f"{way}, as_structured_llm", models, lambda m, f: model(f).as_structured_llm(m).complete("Say it.").raw
        if way == "schema":  # by calls it leaves the choice to the model
            yield f"{way}, stream_structured_predict", models, lambda m, f: m.model_validate(list(model(f).stream_structured_predict(m, prompt, what="it"))[-1].model_dump())


METHODS = {"openai": openai_methods, "vllm": vllm_methods, "langchain": langchain_methods, "instructor": instructor_methods, "llamaindex": llamaindex_methods}
