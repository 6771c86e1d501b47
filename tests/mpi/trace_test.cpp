// The timeline that --trace writes: its form, as Perfetto reads it, and its agreement with the end table.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "base/json/json.h"
#include "support/program.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

constexpr int kTraceRanks = 4;
constexpr double kRounding = 0.01;  // microseconds

struct TracedJob {
  const char* name;
  const char* unit;
  const char* picture;  // as which it is drawn
  std::vector<std::string> options;
};
void PrintTo(const TracedJob& job, std::ostream* stream) { *stream << job.name; }

class TraceRunTest : public testing::TestWithParam<TracedJob> {
 protected:
  void run() {
    std::vector<std::string> arguments{"--weights", golden_shards("mini-24", 4), "--trace",  folder_ / "trace.json",
                                       "--report",  folder_ / "report.json",     "--output", folder_ / "out.h5"};
    arguments.insert(arguments.end(), GetParam().options.begin(), GetParam().options.end());
    const Outcome outcome = run_stage(kTraceRanks, arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    std::ifstream(folder_ / "trace.json") >> trace_;
    std::ifstream(folder_ / "report.json") >> report_;
  }
  TemporaryFolder folder_;
  Json trace_, report_;
};

TEST_P(TraceRunTest, IsWhatPerfettoShows) {
  ASSERT_NO_FATAL_FAILURE(run());
  EXPECT_EQ(trace_.at("displayTimeUnit"), "ms");
  // [process, thread]: start and end of each span.
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> lines;
  std::map<int64_t, Json> starts, ends;  // the ends of the arrows
  std::set<std::pair<int, int>> named;
  std::map<std::pair<std::string, int>, int64_t> count;  // [kind, rank]
  double earliest = 1e18;
  for (const Json& event : trace_.at("traceEvents")) {
    const std::string form = event.at("ph");
    const int process = event.at("pid");
    ASSERT_TRUE(event.at("name").is_string());
    ASSERT_TRUE(process >= 0 && process < kTraceRanks);
    if (form == "M") {
      if (event.at("name") == "thread_name") named.emplace(process, event.at("tid").get<int>());
      continue;
    }
    const double start = event.at("ts");
    const int thread = event.at("tid");
    if (form == "X") {
      ASSERT_GE(event.at("dur").get<double>(), 0);
      lines[{process, thread}].emplace_back(start, start + event.at("dur").get<double>());
      ++count[{event.at("cat"), process}];
      earliest = std::min(earliest, start);
      EXPECT_TRUE(event.at("cat") == "run" || event.at("args").at(GetParam().unit).get<int64_t>() >= 0);
    } else {
      ASSERT_TRUE(form == "s" || form == "f") << form;
      auto& side = form == "s" ? starts : ends;
      EXPECT_TRUE(side.emplace(event.at("id").get<int64_t>(), event).second) << "an arrow's end twice";
      EXPECT_EQ(event.value("bp", ""), form == "f" ? "e" : "");
    }
  }
  EXPECT_NEAR(earliest, 0, kRounding);
  for (const auto& [line, spans] : lines) {
    EXPECT_TRUE(named.count(line));
    for (size_t i = 1; i < spans.size(); ++i)
      EXPECT_GE(spans[i].first, spans[i - 1].second - kRounding) << "rank " << line.first << ", line " << line.second;
  }
  const int64_t items = report_.at("micro_batches"), pieces = report_.at("virtual_stages");
  for (int rank = 0; rank < kTraceRanks; ++rank) {
    const bool last = rank + 1 == kTraceRanks;
    EXPECT_EQ((count[{"run", rank}]), 1);
    EXPECT_EQ((count[{"compute", rank}]), pieces * items) << "rank " << rank;
    EXPECT_EQ((count[{"send", rank}]), (last ? pieces - 1 : pieces) * items) << "rank " << rank;
    EXPECT_EQ((count[{"receive", rank}]), (rank == 0 ? pieces - 1 : pieces) * items) << "rank " << rank;
    EXPECT_EQ((count[{"output", rank}]), last ? items : 0) << "rank " << rank;
  }
  EXPECT_EQ(static_cast<int64_t>(starts.size()), items * (pieces * kTraceRanks - 1));
  ASSERT_EQ(starts.size(), ends.size());
  for (const auto& [id, from] : starts) {
    ASSERT_TRUE(ends.count(id));
    const Json& to = ends.at(id);
    EXPECT_EQ(to.at("pid").get<int>(), (from.at("pid").get<int>() + 1) % kTraceRanks);
    EXPECT_GE(to.at("ts").get<double>(), from.at("ts").get<double>());
  }
}

TEST_P(TraceRunTest, HoldsTheFiguresOfTheEndTable) {
  ASSERT_NO_FATAL_FAILURE(run());
  std::vector<double> busy(kTraceRanks, 0), total(kTraceRanks, 0), sending(kTraceRanks, 0);
  for (const Json& event : trace_.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const auto rank = event.at("pid").get<size_t>();
    const std::string kind = event.at("cat");
    const double seconds = event.at("dur").get<double>() * 1e-6;
    if (kind == "compute" || kind == "head") busy[rank] += seconds;
    if (kind == "send") sending[rank] += seconds;
    if (kind == "run") total[rank] += seconds;
  }
  double all_busy = 0;
  for (size_t rank = 0; rank < kTraceRanks; ++rank) {
    const Json& stage = report_.at("stages")[rank];
    EXPECT_NEAR(busy[rank], stage.at("busy_seconds").get<double>(), 1e-6);
    EXPECT_NEAR(sending[rank], stage.at("sending_seconds").get<double>(), 1e-6);
    EXPECT_NEAR(total[rank], stage.at("total_seconds").get<double>(), 1e-6);
    EXPECT_LE(busy[rank] + stage.at("receiving_seconds").get<double>(), total[rank] + 1e-3);
    all_busy += busy[rank];
  }
  const double all_total = kTraceRanks * *std::max_element(total.begin(), total.end());
  EXPECT_NEAR(1 - all_busy / all_total, report_.at("lost_share").get<double>(), 1e-4);
}

TEST_P(TraceRunTest, CanBeDrawn) {
  ASSERT_NO_FATAL_FAILURE(run());
  const std::string picture = folder_ / GetParam().picture;
  const Outcome outcome = run_program({LFM2_PYTHON, LFM2_PLOT_TRACE, folder_ / "trace.json", picture});
  if (outcome.exit_code == 69) {
    EXPECT_NE(outcome.err.find("plot-trace: matplotlib is not there"), std::string::npos) << outcome.err;
    GTEST_SKIP() << "needs matplotlib";
  }
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_GT(std::filesystem::file_size(picture), 10000u);
  if (GetParam().name != std::string_view("Scoring")) return;
  EXPECT_EQ(run_program({LFM2_PYTHON, LFM2_PLOT_TRACE, folder_ / "report.json", folder_ / "other.svg"}).exit_code, 65);
  EXPECT_EQ(run_program({LFM2_PYTHON, LFM2_PLOT_TRACE, folder_ / "no.json", folder_ / "other.svg"}).exit_code, 66);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "other.svg"));
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, TraceRunTest,
    testing::Values(
        TracedJob{"Scoring", "micro-batch", "picture.png", {"--samples", "40", "--length", "24", "--micro-batch", "3"}},
        TracedJob{"Ring",
                  "micro-batch",
                  "picture.svg",
                  {"--samples", "40", "--length", "24", "--micro-batch", "3", "--virtual-stages", "2"}},
        TracedJob{"Generation",
                  "step",
                  "picture.svg",
                  {"--samples", "12", "--length", "9", "--max-tokens", "12", "--ignore-eos"}}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace lfm2::test
