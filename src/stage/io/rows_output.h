// The output of a scoring as rows at places that follow from their numbers: .bin (last logits) and .h5 (anything).
// Called by output_file.h's functions of the same names.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "stage/io/output_file.h"

namespace lfm2 {

std::unique_ptr<OutputFile> create_rows(const std::filesystem::path& path, const OutputJob& job);
std::unique_ptr<OutputFile> resume_rows(const std::filesystem::path& path, const OutputJob& job, Unfinished& begun);
std::unique_ptr<OutputFile> join_rows(const std::filesystem::path& path, const std::string& shared,
                                      const OutputJob& job);

}  // namespace lfm2
