// A job of scoring by a small model whose ranks are threads of the test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "stage/io/inputs/input_file.h"
#include "stage/model/partition.h"
#include "stage/scoring/plan.h"
#include "stage/shards/shard_reader.h"
#include "support/loaded_stage.h"
#include "support/shards.h"

namespace lfm2::test {

// A cut into the virtual stages of ranks that have so many pieces each.
struct Cut {
  std::vector<LayerRange> ranges;
  int64_t pieces = 1;
  Cut(std::vector<LayerRange> all, int64_t pieces_of_rank = 1) : ranges(std::move(all)), pieces(pieces_of_rank) {}
};

// Runs `samples` through one thread a rank; the collector gets all rows. `stop`: see Scorer::run. Returns whether the
// run was finished.
bool run_scoring(const std::string& golden_case, const Cut& cut, const Samples& samples, MicroBatches::Size size,
                 ResultKind kind, DType compute, int threads, ResultConsumer& collector,
                 const std::function<bool()>& stop = {}, LateParts late = {});

// The logits of all rows.
std::vector<float> score(const std::string& golden_case, const Cut& cut, const Samples& samples, int64_t micro_batch,
                         Positions positions, DType compute = DType::kF32, int threads = 1);

// The scores of all rows, which must come in order.
struct ScoreCollector : ResultConsumer {
  void consume(const ResultRows& rows) override {
    EXPECT_EQ(rows.first, std::ssize(log_probs));
    log_probs.insert(log_probs.end(), rows.log_probs.begin(), rows.log_probs.end());
    is_greedy.insert(is_greedy.end(), rows.is_greedy.begin(), rows.is_greedy.end());
  }
  std::vector<float> log_probs;
  std::vector<int32_t> is_greedy;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b);
Samples golden_samples(const std::string& golden_case);
Samples ragged_samples(int64_t vocab);

// The parameter is the golden case.
class ScorerTest : public testing::TestWithParam<std::string> {
 public:
  static std::string name(const testing::TestParamInfo<std::string>& tested) {
    std::string name = tested.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
  }

 protected:
  ModelConfig config() const { return ShardSet::open(golden_shards(GetParam(), 4)).config(); }
  int64_t layers() const { return config().layers; }
  int64_t blocks() const { return kBlocksOfLayer * layers(); }
  int64_t vocab() const { return config().vocab; }
};

}  // namespace lfm2::test
