#include "stage/planning/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace lfm2 {

std::string timeline_text(std::span<const ReplayedSpan> spans, PipelineShape shape, size_t width) {
  double end = 0;
  for (const ReplayedSpan& span : spans) end = std::max(end, span.end);
  if (end <= 0 || width == 0) return "";
  // Of each character, the computation that fills most of it.
  std::vector<std::vector<double>> filled(static_cast<size_t>(shape.stages), std::vector<double>(width, 0));
  std::vector<std::string> rows(static_cast<size_t>(shape.stages), std::string(width, '.'));
  const double scale = static_cast<double>(width) / end;
  for (const ReplayedSpan& span : spans) {
    const auto stage = static_cast<size_t>(span.stage);
    const char mark = span.head          ? '='
                      : shape.pieces > 1 ? static_cast<char>('a' + span.piece % 26)
                                         : static_cast<char>('0' + span.micro_batch % 10);
    const auto last = std::min(width - 1, static_cast<size_t>(span.end * scale));
    for (auto at = std::min(width - 1, static_cast<size_t>(span.start * scale)); at <= last; ++at) {
      const double part = std::min(span.end * scale, static_cast<double>(at + 1)) -
                          std::max(span.start * scale, static_cast<double>(at));
      // Idle time shows where it fills more than half of a character.
      if (part <= filled[stage][at] || part < 0.5 - filled[stage][at]) continue;
      filled[stage][at] = part;
      rows[stage][at] = mark;
    }
  }
  std::string text;
  for (size_t stage = 0; stage < rows.size(); ++stage) text += fmt::format("{:>6} {}\n", stage, rows[stage]);
  return text + fmt::format("{:>6} {:<{}}{:.4g} s\n", "", 0, width > 1 ? width - 1 : 1, end);
}

}  // namespace lfm2
