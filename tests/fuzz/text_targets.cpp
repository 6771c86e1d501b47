// Tokenizers, texts for one of them, and chat templates.
#include "fuzz/text_targets.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.h"
#include "fuzz/parser_files.h"
#include "text/chat/chat_template.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace lfm2::fuzz {

namespace {

// Ids must lie in the vocabulary and give the text again, but for what added tokens with lstrip or rstrip take.
void encode_and_decode(const Tokenizer& tokenizer, std::string_view text, bool same) {
  std::vector<TokenId> ids;
  tokenizer.encode(text, true, ids);
  for (const TokenId id : ids)
    if (id < 0 || static_cast<size_t>(id) >= tokenizer.size()) std::abort();
  ids.clear();
  tokenizer.encode(text, false, ids);
  if (same && tokenizer.decode(ids, false) != text) std::abort();
  std::string streamed, whole;
  StreamDecoder decoder(tokenizer, false);
  for (const TokenId id : ids) streamed += decoder.feed(id);
  streamed += decoder.flush();
  Utf8Stream utf8;
  utf8.feed(tokenizer.decode(ids, false), whole);
  utf8.flush(whole);
  if (streamed != whole) std::abort();
}

void parse_and_encode(std::string_view json) {
  expect_only_errors([&] {
    const Tokenizer tokenizer = Tokenizer::parse(json, "tokenizer.json");
    for (TokenId id = -1; id < 300; ++id) (void)tokenizer.bytes(id);
    for (const std::string_view sample :
         {"Hello, it's 12345\r\n\n  x \xff\xe4\xbd\xa0<|im_start|>python", "aaaaaaaaaaaaaaaaaaaa", ""})
      encode_and_decode(tokenizer, sample, false);
    encode_and_decode(tokenizer, std::string(300, 'a') + std::string(300, ' '), false);
  });
}

}  // namespace

// The input is a tokenizer.json, or a JSON merge patch for the small one.
void tokenizer_json(Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  parse_and_encode(text);
  expect_only_errors([&] {
    const Json patch = parse_json(text, "patch");
    static const Json small = parse_json(small_tokenizer(), "small");
    if (!patch.is_object() || patch.contains("model")) return;
    Json json = small;
    json.merge_patch(patch);
    parse_and_encode(json.dump());
  });
}

// The tokenizer that is the corpus of tokenizer_json.
void tokenizer_text(Bytes bytes) {
  static const Tokenizer tokenizer = Tokenizer::parse(small_tokenizer(), "tokenizer.json");
  encode_and_decode(tokenizer, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()), true);
}

// A template, and behind a NUL the JSON of a conversation where it has one.
void chat_template(Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t end = std::min(text.find('\0'), text.size());
  constexpr std::string_view kConversation = R"({"messages": [{"role": "system", "content": "Be brief é."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]}, {"role": "assistant", "content": null, "tool_calls":
    [{"type": "function", "function": {"name": "f", "arguments": {"a": [1, 2.5, "x"], "b": null}}}]},
    {"role": "tool", "content": "<think>42</think> is it"}], "tools": [{"type": "function", "function": {"name": "f"}}]})";
  constexpr jinja::Limits kLimits = {.steps = 200'000, .memory_bytes = 32 << 20, .output_bytes = 8 << 20};
  expect_only_errors([&] {
    const OrderedJson conversation = parse_ordered_json(end < text.size() ? text.substr(end + 1) : kConversation,
                                                        "conversation", LargeIntegers::kDigits);
    const OrderedJson none;
    const auto part = [&](const char* key) -> const OrderedJson& {
      return conversation.is_object() && conversation.contains(key) ? conversation[key] : none;
    };
    const ChatTemplate chat = ChatTemplate::parse(text.substr(0, end), "template");
    ChatInput input{part("messages"), part("tools")};
    input.add_generation_prompt = true;
    input.special_tokens = {{"bos_token", "<|first|>"}, {"eos_token", "<|last|>"}};
    const std::string first = chat.render(input, kLimits);
    if (chat.render(input, kLimits) != first) std::abort();
  });
}

}  // namespace lfm2::fuzz
