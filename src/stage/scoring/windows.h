// --stride: texts that are longer than the model go through it as windows that overlap.
#pragma once

#include "stage/io/input_file.h"

namespace lfm2 {

// What goes through the stages instead of samples: windows, which hold their tokens themselves.
struct Windows {
  TokenIds ids;
  SampleOffsets offsets;
  SampleOffsets scored;  // how many tokens of each window are scored, its last ones, added up
};

// Cuts the samples in `range` that have more than `length` tokens. A sample's windows have at most `length` tokens;
// each begins `stride` tokens, fewer than `length`, after the one before, and scores what that one did not reach. So
// the scored tokens are those of the samples, in their order, and each sees all tokens before it or at least length -
// stride of them. Windows that would score nothing are left out.
Windows cut_windows(const Samples& samples, SampleRange range, int64_t length, int64_t stride);

// Whether any of the samples has more than `length` tokens.
bool any_longer(const SampleOffsets& offsets, SampleRange range, int64_t length);

}  // namespace lfm2
