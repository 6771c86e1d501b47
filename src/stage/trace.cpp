// Events as JSON: a process for each rank, a thread for each kind of work, arrows from a send to its receive.
#include "stage/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "stage/checked_file.h"
#include "stage/json.h"

namespace lfm2 {

namespace {

struct Row {
  const char* name;    // of the line in the picture
  const char* prefix;  // of its events
  int order;           // from the top
};
constexpr std::array<Row, 6> kRows{{{"compute", "micro-batch", 2},
                                    {"compute", "head", 2},
                                    {"send", "send", 3},
                                    {"receive", "receive", 1},
                                    {"host waits", "wait", 4},
                                    {"host output", "output", 5}}};

const Row& row_of(TraceKind kind) { return kRows[static_cast<size_t>(kind)]; }

// An item's transfer has one number on both sides of an edge.
int64_t flow_id(int64_t item, int64_t receiver) { return item * 4096 + receiver; }

// `clock` is added to this rank's times; microseconds from rank 0's `origin`.
std::string events_text(const std::vector<TraceEvent>& events, const std::string& device, int rank, double clock,
                        double origin) {
  OrderedJson list = OrderedJson::array();
  list.push_back({{"ph", "M"},
                  {"name", "process_name"},
                  {"pid", rank},
                  {"args", {{"name", fmt::format("rank {}: {}", rank, device)}}}});
  list.push_back({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", rank}, {"args", {{"sort_index", rank}}}});
  for (const Row& row : kRows)
    list.push_back(
        {{"ph", "M"}, {"name", "thread_name"}, {"pid", rank}, {"tid", row.order}, {"args", {{"name", row.name}}}});
  for (const TraceEvent& event : events) {
    const Row& row = row_of(event.kind);
    const double start = (event.start + clock - origin) * 1e6, duration = (event.end - event.start) * 1e6;
    list.push_back({{"ph", "X"},
                    {"name", fmt::format("{} {}", row.prefix, event.item)},
                    {"cat", row.name},
                    {"pid", rank},
                    {"tid", row.order},
                    {"ts", start},
                    {"dur", duration},
                    {"args", {{"micro_batch", event.item}}}});
    if (event.kind != TraceKind::kSend && event.kind != TraceKind::kReceive) continue;
    const bool sends = event.kind == TraceKind::kSend;
    OrderedJson flow = {{"ph", sends ? "s" : "f"},
                        {"name", "hidden states"},
                        {"cat", "hidden states"},
                        {"id", flow_id(event.item, sends ? rank + 1 : rank)},
                        {"pid", rank},
                        {"tid", row.order},
                        {"ts", sends ? start : start + duration}};
    if (!sends) flow["bp"] = "e";  // belongs to the event it ends in
    list.push_back(std::move(flow));
  }
  std::string text = list.dump();
  return text.substr(1, text.size() - 2);  // a list's elements, to be joined with those of other ranks
}

}  // namespace

double seconds_within(const std::vector<Span>& spans, const std::vector<Span>& others) {
  double seconds = 0;
  size_t first = 0;
  for (const Span& span : spans) {
    while (first < others.size() && others[first].end <= span.start) ++first;
    for (size_t i = first; i < others.size() && others[i].start < span.end; ++i)
      seconds += std::min(span.end, others[i].end) - std::max(span.start, others[i].start);
  }
  return seconds;
}

void write_trace(const MpiGroup& group, const std::vector<TraceEvent>& events, const std::string& device,
                 const std::filesystem::path& path, double timeout_seconds) {
  const double clock = group.clock_difference(timeout_seconds);
  double first = std::numeric_limits<double>::infinity();
  for (const TraceEvent& event : events) first = std::min(first, event.start + clock);
  const double origin = group.smallest(first, timeout_seconds);
  const std::vector<std::string> parts =
      group.gather(events_text(events, device, group.rank(), clock, origin), 0, timeout_seconds, "trace");
  if (group.rank() != 0) return;
  const std::string text =
      fmt::format("{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n{}\n]}}\n", fmt::join(parts, ",\n"));
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace lfm2
