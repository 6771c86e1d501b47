// Scores of tokens: which ones, how much text they are, their sums, and the files that hold them.
#include "stage/io/scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "base/json/json.h"
#include "stage/hdf5/h5.h"
#include "stage/hdf5/h5_scan.h"
#include "stage/io/inputs/input_file.h"
#include "stage/io/output_file.h"
#include "stage/io/validation.h"
#include "support/golden.h"
#include "support/weights_support.h"
#include "text/tokenizer.h"

namespace lfm2::test {
namespace {

constexpr ResultKind kScores{.positions = Positions::kAll, .score = true};

TEST(OrderFreeSumTest, AnyOrderAndAnyPartsGiveTheSameSum) {
  std::mt19937 random(1);
  std::vector<double> values;
  double plain = 0;
  for (int i = 0; i < 10000; ++i) {
    values.push_back(std::ldexp(static_cast<double>(random()) - 0x1p31, -static_cast<int>(random() % 60)));
    plain += values.back();
  }
  OrderFreeSum first;
  for (const double value : values) first.add(value);
  EXPECT_NEAR(first.value(), plain, 1e-3);  // the plain sum is rounded to its last places ten thousand times
  std::shuffle(values.begin(), values.end(), random);
  OrderFreeSum front, back;
  for (size_t i = 0; i < values.size(); ++i) (i % 3 == 0 ? front : back).add(values[i]);
  back.add(front);
  EXPECT_EQ(back, first);
  EXPECT_EQ(from_words<OrderFreeSum>(to_words(first)), first);
}

TEST(OrderFreeSumTest, SmallAndHugeValues) {
  OrderFreeSum sum;
  sum.add(-0.25);
  EXPECT_EQ(sum.value(), -0.25);
  sum.add(-1e-30);
  EXPECT_EQ(sum.value(), -0.25);
  sum.add(-HUGE_VAL);
  sum.add(0x1p40);
  EXPECT_EQ(sum.value(), -0.25);  // both count as 2^31
}

TEST(PerplexityTest, IsThatOfTheDefinition) {
  const std::vector<double> log_probs{-0.5, -2, -1.25, -7.5, -0.125};
  ScoreSums sums;
  double sum = 0, spread = 0;
  for (const double value : log_probs) {
    sums.add(static_cast<float>(value), value > -1);
    sum += value;
  }
  for (const double value : log_probs) spread += (value - sum / 5) * (value - sum / 5);
  const double deviation = std::sqrt(spread / 4);  // of one token
  const Perplexity by_token = perplexity(sums, 5), by_word = perplexity(sums, 2);
  EXPECT_DOUBLE_EQ(by_token.value, std::exp(-sum / 5));
  EXPECT_DOUBLE_EQ(by_token.standard_error, std::exp(-sum / 5) * deviation / std::sqrt(5.0));
  EXPECT_DOUBLE_EQ(by_word.value, std::exp(-sum / 2));
  EXPECT_DOUBLE_EQ(by_word.standard_error, std::exp(-sum / 2) * deviation * std::sqrt(5.0) / 2);
  EXPECT_EQ(sums.greedy, 2);
  EXPECT_EQ(from_words<ScoreSums>(to_words(sums)), sums);
  ScoreSums one;
  one.add(-1, true);
  EXPECT_TRUE(std::isnan(perplexity(one, 1).standard_error));
  sums.add(NAN, false);
  EXPECT_TRUE(std::isnan(perplexity(sums, 6).value));
  EXPECT_EQ(sums.tokens, 6);
}

TEST(FindScoredTest, AllButTheFirstWithTheirText) {
  const Tokenizer tokenizer = Tokenizer::parse(read_bytes(golden_dir() / "text/tokenizer.json"), "tokenizer.json");
  Samples samples{.ids = {}, .offsets = {0}};
  std::vector<std::string> texts{"Hello big world", "  two\u00a0words\n", "\xe6\x97\xa5\xe6\x9c\xac"};
  for (const std::string& text : texts) {
    std::vector<int32_t> ids;
    tokenizer.encode(text, true, ids);
    samples.ids.append(ids);
    samples.offsets.push_back(static_cast<int64_t>(samples.ids.size()));
  }
  find_scored(samples, &tokenizer, "in", [] {});
  EXPECT_EQ(samples.scored_words, 3 + 2 + 1);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(samples.scored.length(i), samples.offsets.length(i) - 1);
    EXPECT_EQ(samples.scored_bytes.length(i), std::ssize(texts[static_cast<size_t>(i)]));
  }
  Samples given{.ids = {1, 2, 3}, .offsets = {0, 3}};
  given.scored = {0, 1};
  find_scored(given, nullptr, "in", [] {});
  EXPECT_EQ(given.scored, (SampleOffsets{0, 1}));
  EXPECT_EQ(given.scored_words, -1);
  Samples short_one{.ids = {1, 2, 3}, .offsets = {0, 2, 3}};
  expect_error([&] { find_scored(short_one, nullptr, "in.bin", [] {}); }, ExitCode::kData, {"in.bin: sample 1"});
}

class ScoreFileTest : public testing::Test {
 protected:
  OutputJob job() const {
    return {.kind = kScores,
            .vocab = 3,
            .size = offsets_.job_size(),
            .offsets = &offsets_,
            .names = &names_,
            .scored_bytes = &bytes_,
            .facts = {"lfm2", "fp32", "00", "test"},
            .identity = "{}"};
  }
  ResultRows rows(int64_t first, int64_t count) const {
    const auto at = static_cast<size_t>(first), size = static_cast<size_t>(count);
    return {.first = first,
            .count = count,
            .is_greedy = std::span(greedy_).subspan(at, size),
            .log_probs = std::span(log_probs_).subspan(at, size)};
  }
  void hand_out(OutputFile& file, int64_t first, int64_t count) const {
    ResultHash hash;
    SampleCounter counter(Positions::kAll, offsets_, hash, &file);
    for (ResultConsumer* consumer : std::initializer_list<ResultConsumer*>{&hash, &file, &counter})
      consumer->consume(rows(first, count));
  }

  TemporaryFolder folder_;
  SampleOffsets offsets_{0, 2, 5}, bytes_{0, 7, 9};
  SampleNames names_{"\"a\"", ""};
  std::vector<int32_t> greedy_{1, 0, 0, 1, 1};
  std::vector<float> log_probs_{-0.5f, -2, -1.25f, -0.1f, -3};
};

TEST_F(ScoreFileTest, LinesAndWhatTheySay) {
  auto file = create_output(folder_ / "o.jsonl", job());
  hand_out(*file, 0, 5);
  file->commit();
  const std::string expected =
      R"({"id":"a","logprobs":[-0.5,-2],"is_greedy":[true,false],"sum_logprob":-2.5,"tokens":2,"bytes":7})"
      "\n";
  const std::string text = read_bytes(folder_ / "o.jsonl");
  EXPECT_EQ(text.substr(0, expected.size()), expected);
  const Json second = parse_json(text.substr(expected.size()), "second line");
  EXPECT_EQ(second.at("id"), 1);
  EXPECT_EQ(second.at("tokens"), 3);
  EXPECT_EQ(second.at("sum_logprob"), -1.25 + static_cast<double>(-0.1f) - 3);
  const LineScores scores = parse_score_line(text.substr(expected.size()), "second line");
  EXPECT_EQ(scores.log_probs, (std::vector<float>{-1.25f, -0.1f, -3}));
  EXPECT_EQ(scores.is_greedy, (std::vector<int32_t>{0, 1, 1}));
  for (const char* wrong :
       {"{}", R"({"logprobs":[1],"is_greedy":[]})", R"({"logprobs":["a"],"is_greedy":[true]})", "3"})
    EXPECT_THROW(parse_score_line(wrong, "line"), Error) << wrong;
}

TEST_F(ScoreFileTest, LinesWithoutNumbersAndWithoutATokenizer) {
  ScoreLine line;
  line.add(NAN, true);
  EXPECT_EQ(line.pop_line("3", -1),
            "{\"id\":3,\"logprobs\":[null],\"is_greedy\":[true],\"sum_logprob\":null,\"tokens\":1,"
            "\"bytes\":null}\n");
  line.add(-1, false);
  EXPECT_EQ(line.pop_line("4", 2),
            "{\"id\":4,\"logprobs\":[-1],\"is_greedy\":[false],\"sum_logprob\":-1,\"tokens\":1,\"bytes\":2}\n");
}

TEST_F(ScoreFileTest, DatasetsAndComparisonWithThem) {
  auto file = create_output(folder_ / "o.h5", job());
  hand_out(*file, 0, 5);
  file->commit();
  EXPECT_EQ(read_array(folder_ / "o.h5", "is_greedy").values, (std::vector<double>{1, 0, 0, 1, 1}));
  EXPECT_EQ(read_array(folder_ / "o.h5", "offsets").values, (std::vector<double>{0, 2, 5}));
  EXPECT_EQ(read_array(folder_ / "o.h5", "bytes").values, (std::vector<double>{7, 2}));
  EXPECT_EQ(read_array(folder_ / "o.h5", "logprobs").dims, (std::vector<int64_t>{5}));
  const auto compare = [&](double tolerance) {
    Validation validation(open_score_reference(folder_ / "o.h5", 5), 3, tolerance);
    validation.consume(rows(3, 2));
    validation.consume(rows(0, 3));
    return validation.verdict();
  };
  EXPECT_TRUE(compare(0).valid());
  EXPECT_EQ(compare(0).top1_equal, 5);
  EXPECT_TRUE(compare(0).of_scores);
  log_probs_[4] -= 0.5f;
  greedy_[0] = 0;
  EXPECT_FALSE(compare(0.4).valid());
  EXPECT_TRUE(compare(0.6).valid());
  EXPECT_EQ(compare(1).top1_equal, 4);
  expect_error([&] { open_score_reference(folder_ / "o.h5", 6); }, ExitCode::kData, {"logprobs of shape", "6 scored"});
}

// The sums of a resumed run hold what was finished before.
TEST_F(ScoreFileTest, FinishedSamplesAreHandedOutAgain) {
  for (const char* name : {"o.h5", "o.jsonl"}) {
    SCOPED_TRACE(name);
    hand_out(*create_output(folder_ / name, job()), 2, 3);  // the second sample; then the run ends
    auto begun = find_unfinished(folder_ / name, 2);
    ASSERT_TRUE(begun);
    auto file = resume_output(folder_ / name, job(), *begun);
    ASSERT_EQ(begun->content.records.size(), 1u);
    ScoreCounter counter;
    file->replay(1, 1, counter);
    ScoreSums expected;
    for (size_t row = 2; row < 5; ++row) expected.add(log_probs_[row], greedy_[row] != 0);
    EXPECT_EQ(counter.sums(), expected);
  }
}

}  // namespace
}  // namespace lfm2::test
