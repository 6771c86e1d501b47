// In the JSON a rank is a process and a line of the picture is a thread. Arrows go from a send to its receive.
#include "stage/pipeline/trace_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "comm/channel.h"
#include "stage/support/checked_file.h"
#include "stage/support/json.h"

namespace lfm2 {

namespace {

// The lines of a rank in the picture, from the top. One buffer is sent while the other still is, so each buffer has a
// line for its sends and no events of one line overlap.
enum Line : int { kRunLine, kReceiveLine, kComputeLine, kSendLine, kSecondSendLine, kWaitLine, kOutputLine, kLines };
constexpr std::array<const char*, kLines> kLineNames{
    "run", "receive", "compute", "send, buffer 0", "send, buffer 1", "host waits", "host output"};

Line line_of(const TraceEvent& event) {
  switch (event.kind) {
    case TraceKind::kCompute:
    case TraceKind::kHead:
      return kComputeLine;
    case TraceKind::kSend:
      return event.unit % kBuffers == 0 ? kSendLine : kSecondSendLine;
    case TraceKind::kReceive:
      return kReceiveLine;
    case TraceKind::kWait:
      return kWaitLine;
    case TraceKind::kOutput:
      return kOutputLine;
    case TraceKind::kRun:
      return kRunLine;
  }
  return kRunLine;
}

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

}  // namespace

std::string events_text(const RankTrace& trace, int ranks, double origin) {
  const int rank = trace.rank;
  OrderedJson list = OrderedJson::array();
  list.push_back({{"ph", "M"},
                  {"name", "process_name"},
                  {"pid", rank},
                  {"args", {{"name", fmt::format("rank {}: {}", rank, trace.device)}}}});
  list.push_back({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", rank}, {"args", {{"sort_index", rank}}}});
  for (int line = 0; line < kLines; ++line)
    for (const auto& [name, value] :
         {std::pair<const char*, OrderedJson>{"thread_name", {{"name", kLineNames[static_cast<size_t>(line)]}}},
          {"thread_sort_index", {{"sort_index", line}}}})
      list.push_back({{"ph", "M"}, {"name", name}, {"pid", rank}, {"tid", line}, {"args", value}});
  for (const TraceEvent& event : trace.events) {
    const Line line = line_of(event);
    const double start = (event.start - origin) * 1e6, duration = (event.end - event.start) * 1e6;
    const bool whole = event.kind == TraceKind::kRun;
    list.push_back({{"ph", "X"},
                    {"name", whole ? "run" : fmt::format("{} {}", name_of(event), event.unit)},
                    {"cat", name_of(event)},
                    {"pid", rank},
                    {"tid", static_cast<int>(line)},
                    {"ts", start},
                    {"dur", duration}});
    if (!whole) list.back()["args"] = {{trace.unit, event.unit}};
    if (event.kind != TraceKind::kSend && event.kind != TraceKind::kReceive) continue;
    const bool sends = event.kind == TraceKind::kSend;
    const int receiver = sends ? rank + 1 : rank;
    OrderedJson flow = {{"ph", sends ? "s" : "f"},
                        {"name", "hidden states"},
                        {"cat", "hidden states"},
                        {"id", event.unit * ranks + receiver},  // of the transfer: equal on both sides of an edge
                        {"pid", rank},
                        {"tid", static_cast<int>(line)},
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
