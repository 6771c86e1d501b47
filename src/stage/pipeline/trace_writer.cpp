// In the JSON a rank is a process and a line of the picture is a thread. Arrows go from a send to its receive.
#include "stage/pipeline/trace_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "base/checked_file.h"
#include "base/json/json.h"
#include "comm/channel.h"

namespace lfm2 {

namespace {

// The lines of a rank in the picture, from the top. One buffer is sent while another still is, so each buffer has a
// line for its sends and no events of one line overlap.
class Lines {
 public:
  explicit Lines(std::span<const TraceEvent> events) {
    for (const TraceEvent& event : events) buffers_ = std::max(buffers_, event.buffer + 1);
  }
  int of(const TraceEvent& event) const {
    switch (event.kind) {
      case TraceKind::kRun:
        return 0;
      case TraceKind::kReceive:
        return 1;
      case TraceKind::kCompute:
      case TraceKind::kHead:
        return 2;
      case TraceKind::kSend:
        return kFirstSend + event.buffer;
      case TraceKind::kWait:
        return kFirstSend + buffers_;
      case TraceKind::kOutput:
        return kFirstSend + buffers_ + 1;
    }
    return 0;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names{"run", "receive", "compute"};
    for (int buffer = 0; buffer < buffers_; ++buffer) names.push_back(fmt::format("send, buffer {}", buffer));
    names.insert(names.end(), {"host waits", "host output"});
    return names;
  }

 private:
  static constexpr int kFirstSend = 3;
  int buffers_ = kBuffers;
};

const char* wait_name(Phase phase) {
  switch (phase) {
    case Phase::kReceive:
      return "wait for arrival of";
    case Phase::kSend:
      return "wait until taken:";
    case Phase::kStep:
      return "wait for announcement of";
    case Phase::kTokens:
      return "wait for tokens for";
    case Phase::kWrite:
      return "wait for output of";
    case Phase::kIdle:
    case Phase::kStart:
    case Phase::kRead:
    case Phase::kLoad:
    case Phase::kPrepare:
    case Phase::kConnect:
    case Phase::kCompute:
    case Phase::kMeet:
    case Phase::kEnd:
      break;
  }
  return "wait for computation of";
}

const char* name_of(const TraceEvent& event) {
  switch (event.kind) {
    case TraceKind::kCompute:
      return "compute";
    case TraceKind::kHead:
      return "head";
    case TraceKind::kSend:
      return "send";
    case TraceKind::kReceive:
      return "receive";
    case TraceKind::kWait:
      return wait_name(event.phase);
    case TraceKind::kOutput:
      return "output";
    case TraceKind::kRun:
      return "run";
  }
  return "?";
}

// The id of the transfer of a send or receive: equal on both sides of an edge, and unique.
int64_t transfer_id(const TraceEvent& event, const RankTrace& trace, int ranks) {
  const int64_t stages = trace.shape.stages, stage = trace.rank % stages;
  int64_t receiver = trace.rank, piece = event.piece;
  if (event.kind == TraceKind::kSend && stage + 1 < stages) ++receiver;
  if (event.kind == TraceKind::kSend && stage + 1 == stages) {  // round the ring
    receiver -= stage;
    ++piece;
  }
  return (event.unit * trace.shape.pieces + piece) * ranks + receiver;
}

// What the event is called in the picture: "compute 3", with several pieces "compute 3, piece 1".
std::string label_of(const TraceEvent& event, const RankTrace& trace) {
  if (event.kind == TraceKind::kRun) return "run";
  const std::string label = fmt::format("{} {}", name_of(event), event.unit);
  return trace.shape.pieces > 1 ? fmt::format("{}, piece {}", label, event.piece) : label;
}

}  // namespace

std::string events_text(const RankTrace& trace, int ranks, double origin) {
  const int rank = trace.rank;
  const Lines lines(trace.events);
  const std::vector<std::string> names = lines.names();
  OrderedJson list = OrderedJson::array();
  list.push_back({{"ph", "M"},
                  {"name", "process_name"},
                  {"pid", rank},
                  {"args", {{"name", fmt::format("rank {}: {}", rank, trace.device)}}}});
  list.push_back({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", rank}, {"args", {{"sort_index", rank}}}});
  for (size_t line = 0; line < names.size(); ++line)
    for (const auto& [name, value] : {std::pair<const char*, OrderedJson>{"thread_name", {{"name", names[line]}}},
                                      {"thread_sort_index", {{"sort_index", line}}}})
      list.push_back({{"ph", "M"}, {"name", name}, {"pid", rank}, {"tid", line}, {"args", value}});
  for (const TraceEvent& event : trace.events) {
    const int line = lines.of(event);
    const double start = (event.start - origin) * 1e6, duration = (event.end - event.start) * 1e6;
    const bool whole = event.kind == TraceKind::kRun;
    list.push_back({{"ph", "X"},
                    {"name", label_of(event, trace)},
                    {"cat", name_of(event)},
                    {"pid", rank},
                    {"tid", line},
                    {"ts", start},
                    {"dur", duration}});
    if (!whole) list.back()["args"] = {{trace.unit, event.unit}};
    if (!whole && trace.shape.pieces > 1) list.back()["args"]["piece"] = event.piece;
    if (event.kind != TraceKind::kSend && event.kind != TraceKind::kReceive) continue;
    const bool sends = event.kind == TraceKind::kSend;
    OrderedJson flow = {{"ph", sends ? "s" : "f"},
                        {"name", "hidden states"},
                        {"cat", "hidden states"},
                        {"id", transfer_id(event, trace, ranks)},
                        {"pid", rank},
                        {"tid", line},
                        {"ts", sends ? start : start + duration}};
    if (!sends) flow["bp"] = "e";  // the arrow ends at the event around `ts`, not at the next one
    list.push_back(std::move(flow));
  }
  std::string text = json_text(list);
  return text.substr(1, text.size() - 2);
}

void write_trace(const MpiGroup& group, const RankTrace& trace, const std::filesystem::path& path,
                 double timeout_seconds) {
  const double clock = group.clock_difference(timeout_seconds);
  double first = std::numeric_limits<double>::infinity();
  for (const TraceEvent& event : trace.events) first = std::min(first, event.start + clock);
  const double origin = group.smallest(first, timeout_seconds);
  const std::vector<std::string> parts =
      group.gather(events_text(trace, group.size(), origin - clock), 0, timeout_seconds, "trace");
  if (group.rank() != 0) return;
  const std::string text =
      fmt::format("{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n{}\n]}}\n", fmt::join(parts, ",\n"));
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace lfm2
