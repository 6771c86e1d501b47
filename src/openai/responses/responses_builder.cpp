#include "openai/responses/responses_builder.h"

#include <fmt/format.h>

#include <utility>

#include "openai/responses/responses_request.h"

namespace lfm2 {

// What an item of a kind is called: the beginning of its id, its type, the type of its one part ("": it has none), and
// the name of the events about its text.
struct ResponsesBuilder::Kind {
  const char *id, *type, *part, *event;
};

namespace {

// A part of an item's content with its text.
OrderedJson part_json(std::string_view type, std::string text) {
  OrderedJson part{{"type", type}, {"text", std::move(text)}};
  if (type == "output_text") part.update({{"annotations", OrderedJson::array()}, {"logprobs", OrderedJson::array()}});
  return part;
}

}  // namespace

const ResponsesBuilder::Kind& ResponsesBuilder::kind_of(AnswerPart::Kind kind) {
  static constexpr Kind kThought{"rs", "reasoning", "reasoning_text", "response.reasoning_text"},
      kContent{"msg", "message", "output_text", "response.output_text"},
      kCall{"fc", "function_call", "", "response.function_call_arguments"};
  switch (kind) {
    case AnswerPart::Kind::kThought:
      return kThought;
    case AnswerPart::Kind::kContent:
      return kContent;
    case AnswerPart::Kind::kCall:
      break;
  }
  return kCall;
}

ResponsesBuilder::ResponsesBuilder(const OpenAiRequest& request, std::string id, const ResponseFacts& facts)
    : stream_(request.stream),
      id_(std::move(id)),
      shape_(request.response),
      reader_(facts.answer_tokens, request.form.message,
              SettledTokens(*facts.tokenizer, request.requests.front().stop, request.requests.front().rule.min_tokens)),
      response_{{"id", fmt::format("resp-{}", id_)},
                {"object", "response"},
                {"created_at", facts.created},
                {"status", "in_progress"},
                {"background", false},
                {"error", nullptr},
                {"incomplete_details", nullptr},
                {"model", facts.model},
                {"output", OrderedJson::array()},
                {"previous_response_id", nullptr},
                {"store", false},
                {"truncation", "disabled"},
                {"usage", nullptr}} {
  response_.update(shape_->repeated);
  tokens_.prompt = std::ssize(request.requests.front().prompt);
}

void ResponsesBuilder::add(size_t, const DrawnToken& token, int64_t cached) {
  tokens_.cached = cached;
  ++tokens_.drawn;
  reader_.feed(token.token);
  if (token.ends) reader_.end(*token.ends == FinishReason::kLength);
  end_ = token.ends;
  for (AnswerPart& part : reader_.pop_parts()) append_part(parts_, std::move(part));
}

void ResponsesBuilder::add_event(std::string_view type, OrderedJson fields) {
  if (!stream_) return;
  OrderedJson event{{"type", type}, {"sequence_number", sequence_++}};
  event.update(fields);
  events_.push_back({json_text_with_digits(event), std::string(type)});
}

void ResponsesBuilder::add_response_event(std::string_view status) {
  add_event(fmt::format("response.{}", status), {{"response", response_}});
}

// The name of a call, and its namespace if the function has one.
OrderedJson ResponsesBuilder::call_json(const std::string& name) const {
  const auto found = shape_->functions.find(name);
  if (found == shape_->functions.end() || !found->second.space) return {{"name", name}};
  return {{"name", found->second.name}, {"namespace", *found->second.space}};
}

void ResponsesBuilder::begin_item(const AnswerPart& part) {
  open_ = part.kind;
  const Kind& kind = kind_of(part.kind);
  const size_t index = response_["output"].size();
  const std::string name = fmt::format("{}-{}", id_, index);
  OrderedJson item{{"id", fmt::format("{}-{}", kind.id, name)}, {"type", kind.type}, {"status", "in_progress"}};
  if (part.kind == AnswerPart::Kind::kCall) {
    item.update({{"call_id", fmt::format("call-{}", name)}, {"arguments", ""}});
    item.update(call_json(part.name));
  } else {
    item["content"] = OrderedJson::array();
  }
  if (part.kind == AnswerPart::Kind::kThought) item["summary"] = OrderedJson::array();
  if (part.kind == AnswerPart::Kind::kContent) item["role"] = "assistant";
  add_event("response.output_item.added", {{"output_index", index}, {"item", item}});
  if (part.kind != AnswerPart::Kind::kCall) {
    item["content"].push_back(part_json(kind.part, ""));
    add_event("response.content_part.added",
              {{"item_id", item["id"]}, {"output_index", index}, {"content_index", 0}, {"part", item["content"][0]}});
  }
  response_["output"].push_back(std::move(item));
}

// The place of an event about the text of the last item.
OrderedJson ResponsesBuilder::place() const {
  const OrderedJson& output = response_["output"];
  OrderedJson place{{"item_id", output.back()["id"]}, {"output_index", output.size() - 1}};
  if (open_ != AnswerPart::Kind::kCall) place["content_index"] = 0;
  return place;
}

OrderedJson& ResponsesBuilder::text() {
  OrderedJson& item = response_["output"].back();
  return open_ == AnswerPart::Kind::kCall ? item["arguments"] : item["content"][0]["text"];
}

void ResponsesBuilder::extend_item(const std::string& more) {
  text().get_ref<std::string&>() += more;
  OrderedJson fields = place();
  fields["delta"] = more;
  if (open_ == AnswerPart::Kind::kContent) fields["logprobs"] = OrderedJson::array();
  add_event(fmt::format("{}.delta", kind_of(*open_).event), std::move(fields));
}

void ResponsesBuilder::end_item(std::string_view status) {
  if (!open_) return;
  OrderedJson& item = response_["output"].back();
  const bool call = open_ == AnswerPart::Kind::kCall;
  OrderedJson fields = place();
  fields[call ? "arguments" : "text"] = text();
  if (call) fields["name"] = item["name"];
  if (open_ == AnswerPart::Kind::kContent) fields["logprobs"] = OrderedJson::array();
  add_event(fmt::format("{}.done", kind_of(*open_).event), std::move(fields));
  if (!call) {
    fields = place();
    fields["part"] = item["content"][0];
    add_event("response.content_part.done", std::move(fields));
  }
  item["status"] = status;
  add_event("response.output_item.done", {{"output_index", response_["output"].size() - 1}, {"item", item}});
  open_.reset();
}

void ResponsesBuilder::add_items() {
  if (sequence_ == 0) {
    add_response_event("created");
    add_response_event("in_progress");
  }
  for (const AnswerPart& part : std::exchange(parts_, {})) {
    if (open_ != part.kind) {
      end_item("completed");
      begin_item(part);
    }
    extend_item(part.text);
    if (part.kind == AnswerPart::Kind::kCall) end_item("completed");  // it comes whole
  }
}

void ResponsesBuilder::end_response() {
  add_items();
  const bool cut = end_ == FinishReason::kLength;
  const char* const status = cut ? "incomplete" : "completed";
  if (response_["output"].empty()) begin_item({AnswerPart::Kind::kContent, ""});
  end_item(status);
  response_["status"] = status;
  if (cut) response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
  response_["usage"] = {{"input_tokens", tokens_.prompt},
                        {"input_tokens_details", {{"cached_tokens", tokens_.cached}, {"cache_write_tokens", 0}}},
                        {"output_tokens", tokens_.drawn},
                        {"output_tokens_details", {{"reasoning_tokens", reader_.thought_tokens()}}},
                        {"total_tokens", tokens_.prompt + tokens_.drawn}};
  add_response_event(status);
}

std::string ResponsesBuilder::body() {
  end_response();
  return json_text_with_digits(response_);
}

std::vector<StreamEvent> ResponsesBuilder::events(size_t, bool gathers) {
  if (!gathers && !parts_.empty()) add_items();
  return std::exchange(events_, {});
}

std::vector<StreamEvent> ResponsesBuilder::last_events() {
  end_response();
  return std::exchange(events_, {});
}

std::vector<StreamEvent> ResponsesBuilder::error_events(int, std::string_view message) {
  response_["status"] = "failed";
  response_["error"] = {{"code", "server_error"}, {"message", message}};
  add_response_event("failed");
  return std::exchange(events_, {});
}

std::unique_ptr<ResponseBuilder> make_builder(const OpenAiRequest& request, std::string id, ResponseFacts facts,
                                              int64_t max_scored) {
  if (request.response != nullptr) return std::make_unique<ResponsesBuilder>(request, std::move(id), facts);
  id.insert(0, request.form.form == LineForm::kChatCompletion ? "chatcmpl-" : "cmpl-");
  return std::make_unique<CompletionBuilder>(request, std::move(id), std::move(facts), max_scored);
}

}  // namespace lfm2
