// Finds options without a value, which a script passes if a shell variable is not set.
#pragma once

#include <CLI/CLI.hpp>

namespace lfm2 {

// Error(kUsage) for an option whose value is empty or is the name of another option. Text options such as --prompt may
// be empty. To pass a value that looks like an option, write --option=--other.
void check_option_words(const CLI::App& app, int argc, const char* const* argv);

}  // namespace lfm2
