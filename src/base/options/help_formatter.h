// How both programs print --help: options in groups, with defaults, and text that fits a terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace lfm2 {

// Of an option with several long names only the first is printed: the others are older spellings. Ranges of numbers
// are not printed; a message names them where a value is outside.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();
  std::string make_description(const CLI::App* app) const override;
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* command) const override;
};

// The groups of --help, which prints them in this order, and fails with Error(kSoftware) for an option of another.
namespace help_group {
inline constexpr const char *kInput = "Input", *kServer = "Server", *kOutput = "Output", *kGeneration = "Generation",
                            *kLayout = "Layout", *kMachine = "Machine", *kDiagnosis = "Diagnosis";
}  // namespace help_group

// The options that are added from here on stand in this group of --help; "": in none.
inline void begin_group(CLI::App& app, const std::string& group) { app.option_defaults()->group(group); }

}  // namespace lfm2
