// How both programs print --help: options in groups, with defaults, and text that fits a terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace lfm2 {

// Prints only the first long name of an option, since further names are older spellings. Ranges of numbers are not
// printed; the message for a value outside its range names the range.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();
  std::string make_description(const CLI::App* app) const override;
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* command) const override;
};

// The groups of options in the order of --help. An option in any other group is Error(kSoftware).
namespace help_group {
inline constexpr const char *kInput = "Input", *kServer = "Server", *kOutput = "Output", *kGeneration = "Generation",
                            *kLayout = "Layout", *kMachine = "Machine", *kDiagnosis = "Diagnosis";
}  // namespace help_group

// Options that are added after this call belong to this group of --help; "": hidden.
inline void begin_group(CLI::App& app, const std::string& group) { app.option_defaults()->group(group); }

}  // namespace lfm2
