// What the cases of tests/golden/answers leave out: the number of a thought's tokens, single calls, echoes, stop texts.
#include "openai/answer/answer_reader.h"

#include "support/answer_models.h"

namespace lfm2::test {
namespace {

class AnswerReaderTest : public testing::Test {
 protected:
  struct Read {
    std::string parts;
    int64_t thought_tokens;
    bool operator==(const Read&) const = default;
  };
  // "(thought)content[name{arguments}]" of a text that is drawn byte by byte, and with `special` tags as tokens.
  Read read(const std::string& text, const MessageForm& form, bool special = true,
            const std::vector<std::string>& stops = {}) const {
    const AnswerModel& model = special ? special_ : plain_;
    AnswerReader reader(answer_tokens(model.tokenizer()), form, SettledTokens(model.tokenizer(), stops, 0));
    for (const TokenId id : model.ids(text, true)) reader.feed(id);
    reader.end(false);
    Read read{"", reader.thought_tokens()};
    for (const AnswerPart& part : reader.pop_parts())
      read.parts += part.kind == AnswerPart::Kind::kThought   ? '(' + part.text + ')'
                    : part.kind == AnswerPart::Kind::kContent ? part.text
                                                              : '[' + part.name + part.text + ']';
    return read;
  }

  const AnswerModel plain_{{"<|tool_call_start|>", "<|tool_call_end|>"}, ""};
  const AnswerModel special_{{"<|tool_call_start|>", "<|tool_call_end|>", "<think>", "</think>"}, ""};
};

constexpr MessageForm kApart{.thoughts = Thoughts::kApart, .calls = true};

TEST_F(AnswerReaderTest, CountsTheTokensOfThoughts) {
  EXPECT_EQ(read("<think>ab</think>c", kApart), (Read{"(ab)c", 4}));
  EXPECT_EQ(read("<think>ab</think>c", kApart, false), (Read{"(ab)c", 7 + 2 + 8}));
  EXPECT_EQ(read("abc", kApart), (Read{"abc", 0}));
  EXPECT_EQ(read("<thin", kApart, false), (Read{"<thin", 0}));
  EXPECT_EQ(read("<think>ab", kApart), (Read{"(ab)", 3}));
  EXPECT_EQ(read("ab</think>c", {.thoughts = Thoughts::kApart, .in_thought = true}), (Read{"(ab)c", 3}));
  EXPECT_EQ(read("<think>ab</think>c", {.thoughts = Thoughts::kLeftOut}), (Read{"c", 4}));
}

TEST_F(AnswerReaderTest, ThoughtsAsText) {
  for (const bool special : {false, true}) {
    EXPECT_EQ(read("\n<think>a</think>b</think>", {.thoughts = Thoughts::kAsText}, special).parts,
              "\n<think>a</think>b</think>");
    EXPECT_EQ(read("<think>a</think>b", {.thoughts = Thoughts::kAsText, .in_thought = true}, special).parts,
              "<think>a</think>b");
  }
  EXPECT_EQ(read("<think>a</think>b", {}).parts, "ab") << "completions have no special tokens";
}

TEST_F(AnswerReaderTest, TheFirstCallAlone) {
  const std::string text =
      "x<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>y<|tool_call_start|>[h()]<|tool_call_end|>";
  EXPECT_EQ(read(text, kApart).parts, R"(x[f{"a":1}][g{}]y[h{}])");
  EXPECT_EQ(read(text, {.thoughts = Thoughts::kApart, .calls = true, .one_call = true}).parts, R"(x[f{"a":1}]y)");
  EXPECT_EQ(read(text, {.thoughts = Thoughts::kApart}).parts, "x[f(a=1), g()]y[h()]");
}

TEST_F(AnswerReaderTest, Echoes) {
  const std::string block = "<|tool_call_start|>[f()]<|tool_call_end|>";
  EXPECT_EQ(read(block + "\n[f()] <|tool_call_end|>x", kApart).parts, "[f{}]x");
  EXPECT_EQ(read(block + "[f()]", kApart).parts, "[f{}][f()]") << "without an end it is text";
  EXPECT_EQ(read(block + "[f(x)]<|tool_call_end|>", kApart).parts, "[f{}][f(x)]");
  EXPECT_EQ(read(block + "\n[f()" + block, kApart).parts, "[f{}]\n[f()[f{}]");
}

// A stop text ends a call as it ends other text.
TEST_F(AnswerReaderTest, StopTexts) {
  const std::string text = "<think>ab</think>x<|tool_call_start|>[f(a='b'), g()]<|tool_call_end|>";
  EXPECT_EQ(read(text, kApart, true, {"q"}).parts, R"((ab)x[f{"a":"b"}][g{}])");
  EXPECT_EQ(read(text, kApart, true, {"g("}).parts, "(ab)x[f(a='b'), ");
  EXPECT_EQ(read(text, kApart, true, {"bx"}).parts, "(a)");
  EXPECT_EQ(read(text, kApart, false, {"</th"}).parts, "(ab)");
}

}  // namespace
}  // namespace lfm2::test
