// NAME.finished, which a run with --resume writes beside a complete output. If the same command finds it, it ends at
// once, so that a batch system may requeue a finished job.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lfm2 {

struct FinishedMark {
  std::string job;    // JSON: the identity of the job, as in its journal
  std::string found;  // the summary of the results, as the run printed it
};

std::filesystem::path finished_path(const std::filesystem::path& output);  // NAME.finished
// Call once the output has its name. Error(kIo).
void write_finished_mark(const std::filesystem::path& output, const FinishedMark& mark);
// Nothing if there is no mark, or if the output's size or modification time has changed since. Error(kCantCreate) if a
// file of that name is not a mark: it belongs to somebody else and stays.
std::optional<FinishedMark> read_finished_mark(const std::filesystem::path& output);

}  // namespace lfm2
