"""`responses` of the `openai` package with a server: called by serve_openai_check.py.

Texts and usage are those of /v1/chat/completions. The package's types accept every response and event, strictly, and know all of their
fields but those of KNOWN_BY_SOME."""
import json

import openai
import pydantic

VERSE = "And the LORD visited Sarah as he had said, and the LORD did unto Sarah as he had spoken."


# Fields that OpenAI's own responses have and the types of no or not every version: 2.54.0 requires the "name" of a call with its arguments.
KNOWN_BY_SOME = {"store", "name"}


class Verse(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    chapter: int = pydantic.Field(ge=1, le=150)
    name: str = pydantic.Field(max_length=12)


def unknown_fields(value):
    """The names of fields that the package's types do not know."""
    if isinstance(value, pydantic.BaseModel):
        fields = (getattr(value, name) for name in type(value).model_fields)
        return set(value.model_extra or ()).union(*map(unknown_fields, fields))
    return set().union(*map(unknown_fields, value)) if isinstance(value, list) else set()


def validate(kind, text):
    found = kind.model_validate_json(text, strict=True)
    assert found.model_dump(exclude_unset=True) == json.loads(text), text
    assert unknown_fields(found) <= KNOWN_BY_SOME, unknown_fields(found)


def whole(client, **request):
    answer = client.responses.with_raw_response.create(**request)
    response = answer.parse()
    validate(type(response), answer.text if isinstance(answer.text, str) else answer.text())
    return response


def streamed(client, **request):
    """The response of the last event; the events before it give the same items."""
    items, texts = [], {}
    for number, event in enumerate(client.responses.create(**request, stream=True)):
        validate(type(event), event.to_json(exclude_unset=True, indent=None))
        assert event.sequence_number == number, event
        assert (number > 1) == (event.type not in ("response.created", "response.in_progress")), event
        if event.type.endswith(".delta"):
            texts[event.output_index] = texts.get(event.output_index, "") + event.delta
        if event.type == "response.output_item.done":
            item = event.item
            assert texts[event.output_index] == (item.arguments if item.type == "function_call" else item.content[0].text), (item, texts)
            items.append(item)
    assert event.type == f"response.{event.response.status}", event
    assert event.response.output == items, event
    return event.response


def without_ids(items):
    return [{name: value for name, value in item.to_dict().items() if name not in ("id", "call_id")} for item in items]


def check_texts(client):
    count = 0
    for seed in range(6):
        fields = {"model": "m", "temperature": 0.5 * seed, "top_p": 0.9}
        limit, extra = 10 + 10 * seed, {"seed": seed, "top_k": 0}
        chat = client.chat.completions.create(messages=[{"role": "system", "content": "Speak."}, {"role": "user", "content": VERSE}], **fields,
                                              max_tokens=limit, extra_body=extra)
        choice, status = chat.choices[0], {"length": "incomplete", "stop": "completed"}[chat.choices[0].finish_reason]
        for given in (VERSE, [{"role": "user", "content": VERSE}], [{"role": "user", "content": [{"type": "input_text", "text": VERSE}]}]):
            request = {"input": given, "instructions": "Speak.", **fields, "max_output_tokens": limit, "extra_body": extra}
            for response in (whole(client, **request), streamed(client, **request)):
                assert (response.output_text, response.status) == (choice.message.content, status), (response, chat)
                assert response.usage.output_tokens == chat.usage.completion_tokens and response.usage.input_tokens == chat.usage.prompt_tokens
                assert response.usage.total_tokens == chat.usage.total_tokens and response.temperature == fields["temperature"]
                count += 1
    # A conversation goes on with the items of its answers, as they came.
    said = [{"role": "user", "content": VERSE}]
    answer = whole(client, model="m", input=said, max_output_tokens=8)
    more = whole(client, model="m", input=[*said, *answer.output, {"role": "user", "content": "And then?"}], max_output_tokens=8)
    assert more.usage.input_tokens > answer.usage.input_tokens + 8, more
    return f"responses: {count} texts, whole and streamed, and a conversation"


def check_tools(client, biases, ends, vocab):
    """`biases`: of the tokens that make the small model write a call, the last of which ends the text."""
    tools = [{"type": "function", "name": "time", "description": "The time.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}]
    given = [{"role": "user", "content": "What is it?"}]
    request = {"model": "m", "input": given, "tools": tools, "temperature": 0, "max_output_tokens": 20,
               "extra_body": {"logit_bias": {str(token): -100 for token in range(vocab)} | biases, "repetition_penalty": 100, "stop_token_ids": [ends]}}
    response = whole(client, **request)
    call, = response.output
    assert (call.type, call.name, json.loads(call.arguments), call.status) == ("function_call", "time", {"a": 1}, "completed"), response
    assert without_ids(streamed(client, **request).output) == without_ids(response.output)
    with client.responses.stream(**request) as stream:  # the package's own way to put events together
        kinds = [event.type for event in stream]
        assert without_ids(stream.get_final_response().output)[0].items() >= without_ids(response.output)[0].items()
    assert "response.function_call_arguments.done" in kinds and kinds[-1] == "response.completed", kinds
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Noon."}
    reply = whole(client, model="m", input=[*given, call, result], tools=tools, tool_choice="none", max_output_tokens=5)
    assert reply.output_text and all(item.type == "message" for item in reply.output), reply
    forced = {"model": "m", "input": given, "tools": [{**tools[0], "strict": True, "parameters": Verse.model_json_schema()}], "parallel_tool_calls": False,
              "max_output_tokens": 400}
    for choice in ("required", {"type": "function", "name": "time"}):
        for made in (whole(client, **forced, tool_choice=choice), streamed(client, **forced, tool_choice=choice)):
            Verse.model_validate_json(made.output[0].arguments)
    return "responses: calls of tools, whole and streamed, and a result"


def check_schemas(client):
    for seed in range(4):
        request = {"model": "m", "input": "Which verse?", "text_format": Verse, "temperature": 1, "max_output_tokens": 400, "extra_body": {"seed": seed}}
        parsed = client.responses.parse(**request).output_parsed
        with client.responses.stream(**request) as stream:
            assert isinstance(parsed, Verse) and stream.until_done().get_final_response().output_parsed == parsed
    return "responses: objects by a schema, whole and streamed"


def check_refusals(client):
    for more in ({"previous_response_id": "resp-1"}, {"background": True}, {"store": True}, {"conversation": "c"}, {"truncation": "auto"},
                 {"tools": [{"type": "web_search"}]}, {"input": [{"type": "item_reference", "id": "x"}]}):
        try:
            client.responses.create(**{"model": "m", "input": "x", **more})
        except openai.BadRequestError as error:
            assert error.param.partition("[")[0] == next(iter(more)) and error.type == "invalid_request_error", (more, error)
        else:
            raise AssertionError(f"accepted: {more}")
    try:
        client.responses.retrieve("resp-1")
    except openai.NotFoundError as error:
        assert "not stored" in error.message, error
    else:
        raise AssertionError("a stored response")
    return "responses: refusals by name"
