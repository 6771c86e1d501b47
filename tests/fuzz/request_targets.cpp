// Bodies of the server's requests, and the texts in which a model calls tools.
#include "fuzz/request_targets.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json/json.h"
#include "base/utf8.h"
#include "fuzz/parser_files.h"
#include "fuzz/targets.h"
#include "grammar/constraint_cache.h"
#include "openai/answer/call_reader.h"
#include "openai/answer/thought_reader.h"
#include "openai/openai_request.h"
#include "openai/responses/responses_request.h"
#include "text/text_model.h"

namespace lfm2::fuzz {

namespace {

constexpr int64_t kMaxTokens = 500;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// What the three bodies are read with.
struct Reading {
  LineContext context;
  RequestLimits limits;
};

// The tokenizer of the corpus with a template.
TextModel small_model() {
  const Folder folder;
  folder.write("tokenizer.json", bytes_of(small_tokenizer()));
  folder.write("chat_template.jinja",
               bytes_of("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools | tojson }}"));
  return TextModel::open(folder.path());
}

Reading reading() {
  static const TextModel text = small_model();
  static grammar::ConstraintCache constraints(text.tokenizer(), static_cast<int64_t>(text.tokenizer().size()));
  return {.context = {.vocab = static_cast<int64_t>(text.tokenizer().size()),
                      .max_positions = kMaxTokens,
                      .hidden = 8,
                      .text = &text,
                      .constraints = &constraints,
                      .continues = true},
          .limits = {.max_prompt_tokens = kMaxTokens, .max_edits = 16, .max_inputs = 100}};
}

void check_tokens(const std::vector<int32_t>& prompt, int64_t most, int64_t vocab) {
  require(!prompt.empty() && std::ssize(prompt) <= most, "a prompt's length");
  for (const int32_t token : prompt) require(token >= 0 && token < vocab, "a token");
}

void check(const OpenAiRequest& whole, const RequestLimits& limits, int64_t vocab) {
  require(!whole.requests.empty() && std::ssize(whole.requests) <= limits.max_requests, "a number of requests");
  require(whole.choices >= 1 && std::ssize(whole.requests) % whole.choices == 0, "a number of choices");
  require(whole.prompts.empty() || std::ssize(whole.prompts) * whole.choices == std::ssize(whole.requests), "echoes");
  for (const Request& request : whole.requests) {
    const auto tokens = std::ssize(request.prompt);
    check_tokens(request.prompt, kMaxTokens - 1, vocab);
    require(request.max_new >= 1 && request.max_new + tokens <= kMaxTokens, "a number of new tokens");
    require(request.num_top_logprobs >= 0 && request.num_top_logprobs <= limits.max_top_logprobs,
            "a number of top logprobs");
    require(std::ssize(edits_of(request)) <= limits.max_edits, "a number of edits");
    for (const std::string& stop : request.stop) require(!stop.empty(), "an empty stop text");
  }
}

// Embeddings need no room behind their inputs.
void check(const EmbeddingsRequest& whole, Hidden hidden, const RequestLimits& limits, int64_t vocab) {
  require(!whole.requests.empty() && std::ssize(whole.requests) <= limits.max_inputs, "a number of inputs");
  for (const Request& request : whole.requests) {
    check_tokens(request.prompt, kMaxTokens, vocab);
    require(request.hidden == hidden, "hidden states of other positions");
  }
}

template <class F>
void expect_answer_or_refusal(F&& read) {
  try {
    read();
  } catch (const Error& error) {
    require(error.code() == ExitCode::kData && *error.what() != '\0', error.what());
  }
}

}  // namespace

void openai_request(std::span<const std::byte> bytes) {
  const Reading with = reading();
  const Request each{.max_new = 100, .eos_tokens = {2}};
  for (const bool chat : {false, true})
    expect_answer_or_refusal([&] {
      check(parse_openai_request(text_of(bytes), chat, with.context, {.of_ids = each, .of_text = each}, with.limits),
            with.limits, with.context.vocab);
    });
  expect_answer_or_refusal([&] {
    const OpenAiRequest one =
        parse_responses_request(text_of(bytes), with.context, {.of_ids = each, .of_text = each}, with.limits);
    require(one.requests.size() == 1 && one.response != nullptr, "one request with its response");
    check(one, with.limits, with.context.vocab);
  });
}

void embeddings_request(std::span<const std::byte> bytes) {
  const Reading with = reading();
  for (const Hidden hidden : {Hidden::kLast, Hidden::kMean})
    expect_answer_or_refusal([&] {
      check(parse_embeddings_request(text_of(bytes), with.context, hidden, with.limits), hidden, with.limits,
            with.context.vocab);
    });
}

namespace {

std::vector<CallPart> read_calls(std::string_view text, size_t piece, bool cut) {
  CallReader reader;
  std::vector<CallPart> parts;
  const auto add = [&](const std::vector<CallPart>& more) { parts.insert(parts.end(), more.begin(), more.end()); };
  for (size_t at = 0; at < text.size(); at += piece) add(reader.feed(text.substr(at, piece)));
  add(reader.end(cut));
  return parts;
}

// Arguments are JSON objects. JSON's parser has no integers as long as those that calls may have.
void check_call(const ToolCall& call) {
  require(is_utf8(call.name) && is_utf8(call.arguments), "a call that is not UTF-8");
  require(call.arguments.starts_with('{') && call.arguments.ends_with('}'), "arguments that are no object");
  size_t digits = 0, most = 0;
  for (const char c : call.arguments) most = std::max(most, digits = c >= '0' && c <= '9' ? digits + 1 : 0);
  require(most > 300 || OrderedJson::accept(call.arguments), "arguments that are no JSON");
}

}  // namespace

// The same calls however the text comes; without a call, all of the text.
void call_reader(std::span<const std::byte> bytes) {
  const std::string_view text = text_of(bytes);
  for (const bool cut : {false, true}) {
    const std::vector<CallPart> parts = read_calls(text, std::max<size_t>(1, text.size()), cut);
    require(read_calls(text, 1, cut) == parts, "other calls byte by byte");
    size_t calls = 0;
    for (const CallPart& part : parts)
      if (const auto* call = std::get_if<ToolCall>(&part)) {
        check_call(*call);
        ++calls;
      }
    if (calls > 0) continue;
    require(parts.size() == (text.empty() ? 0u : 1u), "a number of parts");
    require(parts.empty() || std::get<std::string>(parts.front()) == text, "a text that changed");
  }
}

// Nothing is lost, and the same bytes are thought however the text comes.
void thought_reader(std::span<const std::byte> bytes) {
  const std::string_view text = text_of(bytes);
  for (const bool in_thought : {false, true}) {
    std::string thoughts[2], all[2];
    for (const size_t way : {0, 1}) {
      const size_t piece = way == 0 ? std::max<size_t>(1, text.size()) : 1;
      ThoughtReader reader(in_thought);
      const auto add = [&](const std::vector<ThoughtReader::Piece>& pieces) {
        for (const ThoughtReader::Piece& one : pieces) {
          all[way] += one.bytes;
          if (one.kind == ThoughtReader::Kind::kThought) thoughts[way] += one.bytes;
        }
      };
      for (size_t at = 0; at < text.size(); at += piece) add(reader.feed(text.substr(at, piece)));
      add(reader.flush());
    }
    require(all[0] == text && all[1] == text, "a text that changed");
    require(thoughts[0] == thoughts[1], "another thought byte by byte");
  }
}

}  // namespace lfm2::fuzz
