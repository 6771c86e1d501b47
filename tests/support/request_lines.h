// Lines of a file as requests, with a tokenizer and a chat template. Used by the tests of lines.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json/json.h"
#include "grammar/constraint_cache.h"
#include "openai/request_line.h"
#include "support/golden.h"
#include "support/weights_support.h"
#include "text/text_model.h"

namespace lfm2::test {

inline constexpr const char* kLinesTemplate =
    "{{ bos_token }}{{ strftime_now('%Y-%m-%d') }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{% if m.role == 'bad' %}{{ raise_exception('no such role') }}{% endif %}"
    "<|im_start|>{{ m.role }} {{ m.content }}{{ mood }}<|im_end|>{% endfor %}";

class RequestLineTest : public testing::Test {
 protected:
  RequestLineTest() {
    write_bytes(folder_ / "tokenizer.json", read_bytes(golden_dir() / "text/tokenizer.json"));
    write_bytes(folder_ / "tokenizer_config.json", R"({"bos_token": "<|startoftext|>"})");
    write_bytes(folder_ / "chat_template.jinja", kLinesTemplate);
    model_ = TextModel::open(folder_.path());
    context_.text = &*model_;
    constraints_.emplace(model_->tokenizer(), context_.vocab);
    context_.constraints = &*constraints_;
  }
  RequestLine parse(const std::string& line) const { return parse_request_line(line, context_, "in.jsonl: line 3"); }
  RequestLine of_body(const std::string& body, const std::string& url = "/v1/completions") const {
    return parse(R"({"custom_id": "a", "method": "POST", "url": ")" + url + R"(", "body": )" + body + "}");
  }
  std::vector<int32_t> encode(const std::string& text, bool special = true) const {
    std::vector<int32_t> ids;
    model_->tokenizer().encode(text, special, ids);
    return ids;
  }
  // What the message says behind the place.
  std::string refusal(const std::string& line) const {
    try {
      parse(line);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
      return without_place(error.what());
    }
    return "accepted";
  }
  static std::string without_place(const std::string& message) {
    constexpr std::string_view kPlace = "in.jsonl: line 3: ";
    EXPECT_TRUE(message.starts_with(kPlace)) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message.substr(std::min(message.size(), kPlace.size()));
  }
  // The same fields are refused in a line, and answered with an error in a batch line.
  void expect_refused(const std::string& field, const std::string& reason) const {
    EXPECT_EQ(refusal(R"({"prompt": "a", )" + field + "}"), reason);
    const RequestLine line = of_body(R"({"prompt": "a", )" + field + "}");
    EXPECT_EQ(without_place(line.error), reason);
    EXPECT_TRUE(line.ids.empty());
    EXPECT_EQ(line.name, "\"a\"");
  }

  TemporaryFolder folder_;
  std::optional<TextModel> model_;
  std::optional<grammar::ConstraintCache> constraints_;
  LineContext context_{.vocab = 1209, .max_positions = 60, .continues = true, .now = 86400};
};

}  // namespace lfm2::test
