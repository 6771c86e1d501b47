// The predicted times of blocks, from the measured costs of a machine.
#pragma once

#include "stage/planning/machine_costs.h"

namespace lfm2 {

class BlockTimes {
 public:
  // With `ranks` ranks of a host computing at a time. Both must outlive this.
  BlockTimes(const MachineCosts& machine, const ModelConfig& config, int64_t ranks);

  // A micro-batch with samples of `length` tokens. `kept`: the tokens after the pruning, if `prunes`; `rows`: those
  // with results.
  struct MicroBatchRows {
    int64_t length = 1;
    double tokens = 0, kept = 0, rows = 0;
    bool prunes = false;
  };
  double of(int64_t block, const MicroBatchRows& batch) const;

  // A step: sequences that decode, with `cached` cached tokens on average, and prompts of `length` tokens. Of the
  // prompts, `kept` tokens continue after the last attention, and `rows` have results.
  struct StepRows {
    double decoding = 0, cached = 0, prompts = 0, kept = 0, rows = 0;
    int64_t length = 1;
  };
  double of(int64_t block, const StepRows& step) const;

  double head(double rows) const;

  // The lines of blocks with samples of `length` tokens, through the two sizes that a run measures.
  BlockCosts as_measured(int64_t length, bool prunes) const;

 private:
  double samples(int64_t block, double tokens, int64_t length, bool prunes) const;
  double steps(int64_t block, double sequences, double cached) const;

  const MachineCosts& machine_;
  const ModelConfig& config_;
  const HostCosts& host_;
  BlockKinds kinds_;
  int64_t pruning_;  // the block that prunes; -1: none does
};

}  // namespace lfm2
