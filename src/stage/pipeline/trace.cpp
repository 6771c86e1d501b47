#include "stage/pipeline/trace.h"

#include <algorithm>

namespace lfm2 {

// A receive that was posted before the previous arrival counts from that arrival on.
void RunTrace::ended(const Channel::Transfers& transfers) {
  for (const Span& span : transfers.sent) add_first_of(sending_, TraceKind::kSend, span.start, span.end);
  for (const Span& span : transfers.received) {
    add_first_of(receiving_, TraceKind::kReceive, std::max(span.start, newest_arrival_), span.end);
    newest_arrival_ = std::max(newest_arrival_, span.end);
  }
}

void RunTrace::add_first_of(std::deque<Transfer>& open, TraceKind kind, double start, double end) {
  if (open.empty()) return;  // it ended before the run
  const auto [unit, buffer] = open.front();
  open.pop_front();
  add({.kind = kind, .unit = unit.number, .piece = unit.piece, .buffer = buffer, .start = start, .end = end});
}

}  // namespace lfm2
