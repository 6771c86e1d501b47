// A generation by a small model whose stages are threads of the test.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stage/generation/generator.h"
#include "stage/io/inputs/input_file.h"

namespace lfm2::test {

struct GenerationSettings {
  int64_t stages = 1, slots = 4, page_size = 16, prompt_tokens = 64, max_new = 12;
  SamplingRule rule{};
  std::vector<int32_t> eos_tokens{};
  int64_t top_k = 0;
  DType compute = DType::kF32;
  std::optional<DType> cache{};
  int64_t pages = 0;  // 0: as many as all slots can fill
  std::vector<std::string> stop{};
  TokenText token_text{};
  bool keeps_prefixes = false;
  bool gives_back = true;  // whether layers with a window give pages back
  double times_interval = 0;
  std::vector<LayerRange> cut{};  // into `stages` stages; empty: equal
  DrafterFactory drafters{};      // empty: no drafts
  int64_t max_drafts = 0;         // of a sequence in a step
  std::string dspark{};           // a case of golden/dspark, whose drafter makes the drafts; empty: none
  bool fixed_drafts = true, streams_drafts = false;
  SchedulerCounts* counts = nullptr;                // filled, if given
  int64_t* most_window_pages = nullptr;             // filled, if given: of layers with a window, at a time
  grammar::ConstraintCache* constraints = nullptr;  // compiles those of the samples' rules
};

// The completions of `samples` by sample, with prompts' rules over those of `settings`; expects that every sample comes
// back once and that no slot or page is left taken. `preemptions`: how often a sequence gave its pages back; `cached`:
// tokens that the prefix cache had.
std::map<int64_t, Completion> generate(const std::string& golden_case, const Samples& samples,
                                       const GenerationSettings& settings, int64_t* preemptions = nullptr,
                                       int64_t* cached = nullptr);

// Nine prompts of 1 to 40 random tokens.
Samples ragged_prompts(int64_t vocab);

// Each sample has the completion of `expected`, bit for bit.
void expect_same(const std::map<int64_t, Completion>& found, const std::map<int64_t, Completion>& expected);

}  // namespace lfm2::test
