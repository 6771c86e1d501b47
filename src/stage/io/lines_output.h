// The output of a scoring as .jsonl, a line for each sample. Called by output_file.h's functions of the same names.
#pragma once

#include <filesystem>
#include <memory>

#include "stage/io/output_file.h"

namespace lfm2 {

std::unique_ptr<OutputFile> create_lines(const std::filesystem::path& path, const OutputJob& job);
std::unique_ptr<OutputFile> resume_lines(const std::filesystem::path& path, const OutputJob& job, Unfinished& begun);
// For another replica than the first: its lines go to the rank that writes the file.
std::unique_ptr<OutputFile> join_lines(const OutputJob& job);

}  // namespace lfm2
