// Which tokens of a line are scored.
#include "support/request_lines.h"

namespace lfm2::test {
namespace {

class TargetTest : public RequestLineTest {
 protected:
  TargetTest() {
    context_.continues = false;
    context_.scores = true;
  }
};

TEST_F(TargetTest, AllButTheFirstWithoutOne) {
  EXPECT_EQ(parse(R"({"input_ids": [3, 4, 5]})").scored, 2);
  const RequestLine line = parse(R"({"text": "Hello world"})");
  EXPECT_EQ(line.ids, encode("Hello world"));
  EXPECT_EQ(line.scored, std::ssize(line.ids) - 1);
  EXPECT_EQ(parse_text_line("Hello world", context_, "in.txt: line 1").scored, line.scored);
  EXPECT_EQ(refusal(R"({"input_ids": [3]})"), "1 tokens, expected at least 2 with --score: the first one is given");
  EXPECT_EQ(refusal(R"({"text": ""})"), "1 tokens, expected at least 2 with --score: the first one is given");
  EXPECT_EQ(refusal(R"({"prompt": "a"})"), "is to be continued, expected \"input_ids\" or \"text\" with --score");
}

TEST_F(TargetTest, IdsBehindIdsAndText) {
  RequestLine line = parse(R"({"input_ids": [3, 4], "target": [5, 6]})");
  EXPECT_EQ(line.ids, (std::vector<int32_t>{3, 4, 5, 6}));
  EXPECT_EQ(line.scored, 2);
  line = parse(R"({"text": "Hello", "target": [5]})");
  EXPECT_EQ(line.scored, 1);
  EXPECT_EQ(line.ids.size(), encode("Hello").size() + 1);
  EXPECT_EQ(refusal(R"({"input_ids": [3, 4], "target": "a"})"),
            "\"target\" is \"a\", expected a list of token ids, as \"input_ids\" is");
  EXPECT_EQ(refusal(R"({"input_ids": [3, 4], "target": []})"),
            "\"target\" has 0 of 2 tokens, expected one or more, after one or more others");
  EXPECT_EQ(refusal(R"({"input_ids": [], "target": [1]})"),
            "\"target\" has 1 of 1 tokens, expected one or more, after one or more others");
  EXPECT_EQ(refusal(R"({"text": null, "target": "a"})"),
            "expected an object with \"input_ids\": [...], \"text\", \"prompt\" or \"messages\", or a batch line with "
            "\"custom_id\"");
  context_.scores = false;
  EXPECT_TRUE(refusal(R"({"input_ids": [3], "target": [5]})").starts_with("unknown key \"target\""));
}

// As tokenizers and the rule of lm-evaluation-harness cut them (tests/reference/score_golden.py).
TEST_F(TargetTest, TextIsJoinedAndCutAsTheHarnessDoes) {
  const Json golden = parse_json(read_bytes(golden_dir() / "scores.json"), "scores.json");
  ASSERT_GT(golden.at("targets").size(), 50u);
  for (const Json& one : golden.at("targets")) {
    const RequestLine line = parse(json_text(Json{{"text", one.at("text")}, {"target", one.at("target")}}));
    EXPECT_EQ(line.ids, one.at("ids").get<std::vector<int32_t>>()) << one.at("text");
    EXPECT_EQ(line.scored, one.at("scored").get<int64_t>()) << one.at("text") << one.at("target");
  }
}

}  // namespace
}  // namespace lfm2::test
