#include "base/options/option_words.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/error.h"

namespace lfm2 {

namespace {

std::string expected_value(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type.find("FILE") != std::string::npos) return "the name of a file";
  if (type.find("DIR") != std::string::npos) return "the name of a folder";
  return "a value";
}

// The option that the word names, without a value after '='.
const CLI::Option* option_of(const CLI::App& app, std::string_view word) {
  if (word.size() < 2 || word.front() != '-') return nullptr;
  return app.get_option_no_throw(std::string(word.substr(0, word.find('='))));
}

}  // namespace

void check_option_words(const CLI::App& app, int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const CLI::Option* option = option_of(app, word);
    if (option == nullptr || option->get_items_expected_max() == 0) continue;
    const size_t equals = word.find('=');
    const bool within = equals != std::string_view::npos;
    if (!within && i + 1 == argc) return;  // CLI11 says that the value is missing
    const std::string_view name = word.substr(0, equals), value = within ? word.substr(equals + 1) : argv[++i];
    const bool takes_text = option->get_type_name().find("TEXT") != std::string::npos;
    if (value.empty() && !takes_text)
      throw Error(ExitCode::kUsage, fmt::format("{}: \"\", expected {} (see --help)", name, expected_value(*option)));
    if (!within && option_of(app, value) != nullptr)
      throw Error(ExitCode::kUsage, fmt::format("{}: \"{}\" is an option, expected {} (or {}={}, see --help)", name,
                                                value, expected_value(*option), name, value));
  }
}

}  // namespace lfm2
