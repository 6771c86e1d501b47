// NAME.finished, which a run with --resume leaves beside an output that is whole. The same command ends at once where
// it finds one, so that batch systems may queue a job again that has ended.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lfm2 {

struct FinishedMark {
  std::string job;    // JSON: the identity of the job, as in its journal
  std::string found;  // what the run said of the results
};

std::filesystem::path finished_path(const std::filesystem::path& output);  // NAME.finished
// Call once the output has its name. Error(kIo).
void write_finished_mark(const std::filesystem::path& output, const FinishedMark& mark);
// Nothing where there is no mark, or where the output's size or time of change are others than when the mark was
// written. Error(kCantCreate) where a file of that name is no mark: it belongs to somebody else and stays.
std::optional<FinishedMark> read_finished_mark(const std::filesystem::path& output);

}  // namespace lfm2
