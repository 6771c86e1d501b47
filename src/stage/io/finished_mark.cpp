#include "stage/io/finished_mark.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <span>

#include "base/checked_file.h"
#include "base/error.h"
#include "base/json/json.h"

namespace lfm2 {

namespace {

constexpr const char *kJob = "job", *kFound = "found", *kOutput = "output";

// The output's size and modification time, which identify its content. Null if there is no output.
Json state_of(const std::filesystem::path& output) {
  struct stat status {};
  if (::stat(output.c_str(), &status) != 0) return {};
  return {{"bytes", status.st_size},
          {"changed", fmt::format("{}.{:09}", status.st_mtim.tv_sec, status.st_mtim.tv_nsec)}};
}

}  // namespace

std::filesystem::path finished_path(const std::filesystem::path& output) { return output.string() + ".finished"; }

void write_finished_mark(const std::filesystem::path& output, const FinishedMark& mark) {
  const Json json{
      {kJob, parse_json(mark.job, "identity of the job")}, {kFound, mark.found}, {kOutput, state_of(output)}};
  const std::string text = json_text(json) + "\n";
  AtomicFile file(finished_path(output));
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

std::optional<FinishedMark> read_finished_mark(const std::filesystem::path& output) {
  constexpr uint64_t kMaxBytes = 1 << 20;
  const std::filesystem::path path = finished_path(output);
  if (is_free(path)) return {};
  Json json;
  try {
    json = parse_json(read_text_file(path, kMaxBytes), path.string());
  } catch (const Error&) {  // said below
  }
  if (!json.is_object() || !json.contains(kJob) || !json.contains(kFound) || !json.contains(kOutput) ||
      !json[kFound].is_string())
    throw Error(
        ExitCode::kCantCreate,
        fmt::format("{}: is no mark of a finished output, expected the name to be free with --resume", path.string()));
  const Json state = state_of(output);
  if (state.is_null() || json[kOutput] != state) return {};
  return FinishedMark{json_text(json[kJob]), json[kFound].get<std::string>()};
}

}  // namespace lfm2
