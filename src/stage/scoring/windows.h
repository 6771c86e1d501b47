// --stride: cuts texts longer than the model's positions into overlapping windows.
#pragma once

#include "stage/io/inputs/input_file.h"

namespace lfm2 {

// The windows that go through the stages instead of samples. They own their tokens.
struct Windows {
  TokenIds ids;
  SampleOffsets offsets;
  SampleOffsets scored;  // prefix sums of the scored tokens at the end of each window
};

// Cuts the samples that have more than `length` tokens. A window has at most `length` tokens. Each begins
// `stride` tokens (fewer than `length`) after the previous window, and scores the tokens that the previous one did not
// reach. So every token is scored once, in order, and sees all tokens before it or at least length - stride of them.
// Windows without scored tokens are left out.
Windows cut_windows(const Samples& samples, int64_t length, int64_t stride);

// Whether any of the samples has more than `length` tokens.
bool any_longer(const SampleOffsets& offsets, int64_t length);

}  // namespace lfm2
