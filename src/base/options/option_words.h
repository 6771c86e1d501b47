// What scripts get wrong with every option: a shell variable that is not set leaves an option without its value.
#pragma once

#include <CLI/CLI.hpp>

namespace lfm2 {

// Error(kUsage) for an option whose value is empty, or is the name of another option. Options that take a text may have
// an empty one (--prompt); --option=--other is how to mean such a value.
void check_option_words(const CLI::App& app, int argc, const char* const* argv);

}  // namespace lfm2
