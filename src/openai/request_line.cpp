// The same readers parse batch lines and short lines, because a body and a short line have the same fields.
#include "openai/request_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/json/large_json.h"
#include "base/utf8.h"
#include "openai/target.h"
#include "text/text_model.h"

namespace lfm2 {

namespace {

constexpr std::string_view kCompletionsUrl = "/v1/completions", kChatUrl = "/v1/chat/completions",
                           kEmbeddingsUrl = "/v1/embeddings";
constexpr size_t kMaxInputs = 2048;  // of a line of /v1/embeddings; as OpenAI's

// contains() is false for anything but an object.
bool has_batch_keys(const OrderedJson& json) { return json.contains("custom_id") || json.contains("body"); }
bool has_field(const OrderedJson& json, const char* key) { return json.contains(key) && !json[key].is_null(); }

std::vector<int32_t> ids_of_prompt(FieldReader& fields) {
  const OrderedJson* prompt = fields.find("prompt");
  const bool one_text = prompt != nullptr && prompt->is_array() && prompt->size() == 1 && prompt->front().is_string();
  const OrderedJson* text = one_text ? &prompt->front() : prompt;
  const bool special = adds_special_tokens(fields);
  if (text != nullptr && text->is_string())
    return encode(text->get_ref<const std::string&>(), special, fields.context(), fields.where());
  if (prompt == nullptr || !prompt->is_array())
    refuse_field(fields.where(), "prompt", prompt != nullptr ? *prompt : OrderedJson(), "text or a list of token ids");
  return fields.ids("prompt");
}

void score_all_but_first(RequestLine& line, const std::string& where) {
  line.scored = std::ssize(line.ids) - 1;
  if (line.scored < 1)
    throw Error(ExitCode::kData, fmt::format("{}: {} tokens, expected at least 2 with --score: the first one is given",
                                             where, line.ids.size()));
}

// With --score: determines the scored tokens of the line. Before this, its ids are those of the text or of "input_ids".
void read_target(FieldReader& fields, RequestLine& line) {
  const OrderedJson* target = fields.find("target");
  if (target == nullptr) return score_all_but_first(line, fields.where());
  const std::string* text = target->is_string() ? target->get_ptr<const std::string*>() : nullptr;
  if (text != nullptr && line.rules.form == LineForm::kText) {
    const Tokenizer& tokenizer = text_model(fields.context(), fields.where()).tokenizer();
    if (const std::string* own = fields.text("text")) line.scored = join_target(*own, *text, tokenizer, line.ids);
  } else if (text != nullptr) {
    refuse_field(fields.where(), "target", *target, "a list of token ids, as \"input_ids\" is");
  } else {
    const std::vector<int32_t> ids = fields.ids("target");
    line.ids.insert(line.ids.end(), ids.begin(), ids.end());
    line.scored = std::ssize(ids);
  }
  if (line.scored < 1 || line.scored >= std::ssize(line.ids))
    throw Error(ExitCode::kData,
                fmt::format("{}: \"target\" has {} of {} tokens, expected one or more, after one or more others",
                            fields.where(), std::max<int64_t>(0, line.scored), line.ids.size()));
}

// The body of a batch line.
void read_body(const OrderedJson& body, bool chat, const LineContext& context, const std::string& where,
               RequestLine& line) {
  FieldReader fields(body, context, where);
  if (chat) {
    ChatPrompt prompt = prompt_of_messages(fields);
    line.ids = std::move(prompt.ids);
    line.rules.message = read_message_form(fields, prompt.in_thought);
  } else {
    line.ids = ids_of_prompt(fields);
  }
  read_rules(fields, line.rules, line.rules.message.in_thought);
  truncate_prompt(line.ids, read_truncation(fields, line.rules, context.max_positions));
  fields.expect_all_known(FieldReader::Others::kListed);
  check_length(line.ids, context, where, chat ? "messages" : "prompt");
}

}  // namespace

// Inputs are texts or lists of ids, one or a list of them.
void read_embeddings(FieldReader& fields, RequestLine& line) {
  const LineContext& context = fields.context();
  const std::string& where = fields.where();
  const OrderedJson* input = fields.find("input");
  const bool some = input != nullptr && input->is_array() && !input->empty();
  const bool list = some && (input->front().is_array() || input->front().is_string());
  if (input == nullptr || (!input->is_string() && !some) || (list && input->size() > kMaxInputs))
    refuse_field(where, "input", input != nullptr ? *input : OrderedJson(),
                 fmt::format("text, a list of token ids, or a list of at most {} of these", kMaxInputs));
  const bool special = adds_special_tokens(fields);
  const auto add = [&](const OrderedJson& one) {
    const std::vector<int32_t> ids =
        one.is_string() ? encode(one.get_ref<const std::string&>(), special, context, where) : fields.ids("input", one);
    check_length(ids, context, where, "input");
    line.inputs.push_back(static_cast<int32_t>(ids.size()));
    line.ids.insert(line.ids.end(), ids.begin(), ids.end());
  };
  if (list)
    std::for_each(input->begin(), input->end(), add);
  else
    add(*input);
  if (const std::string* format = fields.text("encoding_format")) {
    if (*format != "float" && *format != "base64")
      refuse_field(where, "encoding_format", OrderedJson(*format), "\"float\" or \"base64\"");
    line.base64 = *format == "base64";
  }
  const std::optional<int64_t> dimensions = fields.integer("dimensions", 1, INT32_MAX);
  if (dimensions && *dimensions != context.hidden)
    refuse_field(where, "dimensions", OrderedJson(*dimensions), fmt::format("hidden_size = {}", context.hidden));
}

namespace {

RequestLine parse_batch_line(const OrderedJson& json, const LineContext& context, const std::string& where) {
  RequestLine line;
  FieldReader fields(json, context, where);
  const OrderedJson* id = fields.find("custom_id");
  if (id != nullptr && id->is_string()) line.name = json_text(*id);
  line.rules.form = LineForm::kCompletion;
  try {
    if (line.name.empty()) refuse_field(where, "custom_id", id != nullptr ? *id : OrderedJson(), "text");
    const std::string *method = fields.text("method"), *url = fields.text("url");
    if (method == nullptr || *method != "POST")
      refuse_field(where, "method", method != nullptr ? OrderedJson(*method) : OrderedJson(), "\"POST\"");
    const bool fits =
        url != nullptr && (context.embeddings ? *url == kEmbeddingsUrl : *url == kCompletionsUrl || *url == kChatUrl);
    if (!fits)
      refuse_field(where, "url", url != nullptr ? OrderedJson(*url) : OrderedJson(),
                   context.embeddings ? fmt::format("{}, as the first line has", kEmbeddingsUrl)
                                      : fmt::format("{} or {}", kCompletionsUrl, kChatUrl));
    const OrderedJson* body = fields.find("body");
    if (body == nullptr || !body->is_object())
      refuse_field(where, "body", body != nullptr ? *body : OrderedJson(), "an object");
    fields.expect_all_known(FieldReader::Others::kRefused);
    const bool chat = *url == kChatUrl;
    if (chat) line.rules.form = LineForm::kChatCompletion;
    if (context.embeddings) {
      FieldReader embeddings(*body, context, where);
      read_embeddings(embeddings, line);
      embeddings.expect_all_known(FieldReader::Others::kListed);
    } else {
      read_body(*body, chat, context, where, line);
    }
  } catch (const Error& error) {
    return faulty_line(line.name, line.rules.form, error.what());
  }
  return line;
}

LineForm form_of(const OrderedJson& json, const std::string& where) {
  constexpr std::array<std::pair<const char*, LineForm>, 4> kForms{{{"input_ids", LineForm::kIds},
                                                                    {"text", LineForm::kText},
                                                                    {"prompt", LineForm::kPrompt},
                                                                    {"messages", LineForm::kMessages}}};
  std::optional<LineForm> found;
  for (const auto& [key, form] : kForms) {
    if (!has_field(json, key)) continue;
    if (found)
      throw Error(ExitCode::kData, fmt::format("{}: more than one of input_ids, text, prompt, messages", where));
    found = form;
  }
  if (!found)
    throw Error(ExitCode::kData,
                fmt::format("{}: expected an object with \"input_ids\": [...], \"text\", \"prompt\" or "
                            "\"messages\", or a batch line with \"custom_id\"",
                            where));
  return *found;
}

}  // namespace

RequestLine faulty_line(std::string name, LineForm form, std::string error) {
  RequestLine line;
  line.name = std::move(name);
  line.rules.form = form;
  line.error = std::move(error);
  return line;
}

RequestLine parse_request_line(std::string_view text, const LineContext& context, const std::string& where) {
  const LargeJson parsed = parse_large_json(text, where);
  const OrderedJson& json = *parsed;
  if (!json.is_object())
    throw Error(ExitCode::kData, fmt::format("{}: {}, expected an object", where, json_excerpt(json)));
  const auto expect_continued = [&] {
    if (!context.continues)
      throw Error(ExitCode::kData,
                  context.scores || context.states
                      ? fmt::format("{}: is to be continued, expected \"input_ids\" or \"text\" with {}", where,
                                    context.scores ? "--score" : "--hidden")
                      : fmt::format("{}: is to be continued, but the first line of this job is to be scored: expected "
                                    "lines of one kind, or --max-tokens for all",
                                    where));
  };
  if (has_batch_keys(json)) {
    if (!context.embeddings) expect_continued();
    return parse_batch_line(json, context, where);
  }
  if (context.embeddings)
    throw Error(ExitCode::kData,
                fmt::format("{}: is no batch line, expected one for {}, as the first line is", where, kEmbeddingsUrl));
  RequestLine line;
  bool in_thought = false;
  line.rules.form = form_of(json, where);
  FieldReader fields(json, context, where);
  if (const OrderedJson* id = fields.find("id")) {
    if (!id->is_string() && !id->is_binary() && !whole_number(*id))
      throw Error(ExitCode::kData, fmt::format("{}: \"id\" is neither text nor integer", where));
    line.name = json_text_with_digits(*id);
  }
  switch (line.rules.form) {
    case LineForm::kIds:
      line.ids = fields.ids("input_ids");
      break;
    case LineForm::kText:
      if (const std::string* own = fields.text("text"))
        line.ids = encode(*own, !context.continues || adds_special_tokens(fields), context, where);
      break;
    case LineForm::kPrompt:
      line.ids = ids_of_prompt(fields);
      break;
    default:
      ChatPrompt prompt = prompt_of_messages(fields);
      line.ids = std::move(prompt.ids);
      in_thought = prompt.in_thought;
  }
  if (context.continues) {
    read_rules(fields, line.rules, in_thought);
    truncate_prompt(line.ids, read_truncation(fields, line.rules, context.max_positions));
  } else if (line.rules.form != LineForm::kIds && line.rules.form != LineForm::kText) {
    expect_continued();
  }
  if (context.scores) read_target(fields, line);
  fields.expect_all_known(context.continues ? FieldReader::Others::kListed : FieldReader::Others::kRefused);
  check_length(line.ids, context, where);
  return line;
}

namespace {

void check_text(std::string_view text, const std::string& where) {
  const std::string_view kind = file_kind(text);
  if (!kind.empty()) throw Error(ExitCode::kData, fmt::format("{}: {}", where, kind));
  for (size_t at = 0; at < text.size();) {
    const Utf8Character one = first_character(text.substr(at));
    if (!one.valid || one.point == 0)
      throw Error(ExitCode::kData, fmt::format("{}: byte {} is \\x{:02x}, expected UTF-8 text", where, at,
                                               static_cast<unsigned char>(text[at])));
    at += one.length;
  }
}

}  // namespace

RequestLine parse_text_line(std::string_view text, const LineContext& context, const std::string& where) {
  check_text(text, where);
  RequestLine line;
  line.rules.form = LineForm::kText;
  line.ids = encode(text, true, context, where);
  if (context.scores) score_all_but_first(line, where);
  check_length(line.ids, context, where);
  return line;
}

// kNone for a malformed line, too: reading the line reports its error.
LineKind kind_of_line(std::string_view line) try {
  const LargeJson parsed = parse_large_json(line, "");
  const OrderedJson& json = *parsed;
  if (json.is_null()) return LineKind::kNone;
  if (has_batch_keys(json))
    return json.contains("url") && json["url"] == kEmbeddingsUrl ? LineKind::kEmbeddings : LineKind::kBatch;
  return has_field(json, "prompt") || has_field(json, "messages") ? LineKind::kContinued : LineKind::kScored;
} catch (const Error&) {
  return LineKind::kNone;
}

}  // namespace lfm2
