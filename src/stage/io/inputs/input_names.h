// The files that --input names: several, or patterns for them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lfm2 {

// Whether the shell would look for files of this name: it contains *, ? or [.
bool is_pattern(const std::filesystem::path& path);

// The files of these names and patterns, in this order; those of a pattern in byte order of their names. A pattern that
// is the name of a file, or that no file matches here, stays as it is: other hosts may have the files. Error(kUsage)
// for files of several forms, and for "-" beside others.
std::vector<std::filesystem::path> named_inputs(const std::vector<std::filesystem::path>& given);

// On the rank that reads them: Error(kNoInput) for a pattern that no file matches.
void expect_inputs(const std::vector<std::filesystem::path>& inputs);

// The names of several files without their folders, for the identity of a job.
std::string names_text(const std::vector<std::filesystem::path>& inputs);

}  // namespace lfm2
