// A picture of a predicted timeline, as text.
#pragma once

#include <span>
#include <string>

#include "stage/scoring/planning/replay.h"

namespace lfm2 {

// A row of `width` characters for each stage. A character is the last digit of the micro-batch that computes at that
// time, or with several pieces a letter for the piece ("a" is the first); '=' is the LM head and '.' idle time.
std::string timeline_text(std::span<const ReplayedSpan> spans, PipelineShape shape, size_t width);

}  // namespace lfm2
