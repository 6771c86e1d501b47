// Lines of /v1/embeddings: their inputs, and what is refused.
#include "support/request_lines.h"

namespace lfm2::test {
namespace {

class EmbeddingsLineTest : public RequestLineTest {
 protected:
  EmbeddingsLineTest() {
    context_.continues = false;
    context_.embeddings = true;
    context_.hidden = 32;
  }
  RequestLine of(const std::string& body) const { return of_body(body, "/v1/embeddings"); }
};

TEST_F(EmbeddingsLineTest, InputsOfEveryForm) {
  const std::vector<int32_t> hi = encode("hi"), there = encode("there");
  RequestLine line = of(R"({"input": "hi", "model": "any", "user": "u", "dimensions": 32})");
  EXPECT_EQ(line.error, "");
  EXPECT_EQ(line.ids, hi);
  EXPECT_EQ(line.inputs, (std::vector<int32_t>{static_cast<int32_t>(hi.size())}));
  EXPECT_FALSE(line.base64);
  line = of(R"({"input": ["hi", "there"], "encoding_format": "base64"})");
  std::vector<int32_t> both = hi;
  both.insert(both.end(), there.begin(), there.end());
  EXPECT_EQ(line.ids, both);
  EXPECT_EQ(line.inputs, (std::vector<int32_t>{static_cast<int32_t>(hi.size()), static_cast<int32_t>(there.size())}));
  EXPECT_TRUE(line.base64);
  line = of(R"({"input": [3, 4, 5], "encoding_format": "float"})");
  EXPECT_EQ(line.ids, (std::vector<int32_t>{3, 4, 5}));
  EXPECT_EQ(line.inputs, (std::vector<int32_t>{3}));
  line = of(R"({"input": [[3, 4], [5]]})");
  EXPECT_EQ(line.ids, (std::vector<int32_t>{3, 4, 5}));
  EXPECT_EQ(line.inputs, (std::vector<int32_t>{2, 1}));
}

TEST_F(EmbeddingsLineTest, Faults) {
  const std::string forms = ", expected text, a list of token ids, or a list of at most 2048 of these";
  const auto fault = [&](const std::string& body) {
    const RequestLine line = of(body);
    EXPECT_TRUE(line.ids.empty() && line.inputs.empty());
    return line.error.empty() ? "accepted" : without_place(line.error);
  };
  EXPECT_EQ(fault("{}"), "\"input\" is null" + forms);
  EXPECT_EQ(fault(R"({"input": []})"), "\"input\" is []" + forms);
  EXPECT_EQ(fault(R"({"input": 3})"), "\"input\" is 3" + forms);
  EXPECT_TRUE(fault(R"({"input": [3, -1]})").starts_with("\"input\" is -1, expected token ids from 0 to "));
  EXPECT_EQ(fault(R"({"input": ["a", 3]})"), "\"input\" is 3, expected a list of token ids");
  EXPECT_TRUE(fault(R"({"input": [[3], []]})").starts_with("0 tokens, expected 1 to max_position_embeddings = "));
  EXPECT_EQ(fault(R"({"input": "a", "dimensions": 16})"), "\"dimensions\" is 16, expected hidden_size = 32");
  EXPECT_EQ(fault(R"({"input": "a", "encoding_format": "hex"})"),
            "\"encoding_format\" is \"hex\", expected \"float\" or \"base64\"");
  EXPECT_TRUE(fault(R"({"input": "a", "prompt": "b"})").starts_with("unknown key \"prompt\""));
  std::string many = R"({"input": ["a")";
  for (int i = 0; i < 2048; ++i) many += R"(, "a")";
  EXPECT_TRUE(fault(many + "]}").ends_with(forms));
  EXPECT_EQ(without_place(of_body(R"({"prompt": "a"})").error),
            "\"url\" is \"/v1/completions\", expected /v1/embeddings, as the first line has");
  EXPECT_EQ(refusal(R"({"input_ids": [1]})"),
            "is no batch line, expected one for /v1/embeddings, as the first line is");
  context_.embeddings = false;
  context_.continues = true;
  EXPECT_EQ(without_place(of(R"({"input": "a"})").error),
            "\"url\" is \"/v1/embeddings\", expected /v1/completions or /v1/chat/completions");
}

TEST_F(EmbeddingsLineTest, TheFirstLineSaysSo) {
  EXPECT_EQ(kind_of_line(R"({"custom_id": "a", "url": "/v1/embeddings"})"), LineKind::kEmbeddings);
  for (const char* line : {R"({"custom_id": "a", "url": "/v1/completions"})", R"({"url": "/v1/embeddings"})",
                           R"({"custom_id": "a"})", R"({"body": {}, "url": 3})", "nonsense", ""})
    EXPECT_NE(kind_of_line(line), LineKind::kEmbeddings) << line;
}

}  // namespace
}  // namespace lfm2::test
