#include "base/options/help_formatter.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace lfm2 {

namespace {

constexpr size_t kColumn = 30, kWidth = 100;  // columns where descriptions begin and lines end

// "auto|cuda|cpu" where the value is one of several names, else the name of its type.
std::string type_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t open = type.find('{'), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return type.substr(0, type.find(':'));
  std::string names = type.substr(open + 1, close - open - 1);
  std::ranges::replace(names, ',', '|');
  return names;
}

std::string name_of(const CLI::Option& option) {
  const bool has_short = !option.get_snames().empty(), has_long = !option.get_lnames().empty();
  return (has_short ? "-" + option.get_snames().front() : "") + (has_short && has_long ? ", " : "") +
         (has_long ? "--" + option.get_lnames().front() : "");
}

std::string names_of(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options) names.push_back(option->get_name());
  std::ranges::sort(names);
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string description_of(const CLI::Option& option) {
  std::vector<std::string> notes;
  if (option.get_required()) notes.emplace_back("required");
  if (option.get_type_size() != 0 && !option.get_default_str().empty())
    notes.push_back("default " + option.get_default_str());
  if (!option.get_envname().empty()) notes.push_back("or the environment's " + option.get_envname());
  if (!option.get_needs().empty()) notes.push_back("needs " + names_of(option.get_needs()));
  if (!option.get_excludes().empty()) notes.push_back("not with " + names_of(option.get_excludes()));
  std::string text = option.get_description();
  for (size_t i = 0; i < notes.size(); ++i) text += (i == 0 ? " (" : "; ") + notes[i];
  return text + (notes.empty() ? "" : ")");
}

// `left`, and `text` beside it from kColumn on, in lines of at most kWidth.
std::string in_columns(const std::string& left, std::string_view text) {
  std::string out = "  " + left;
  if (out.size() + 2 > kColumn) out += '\n', out.append(kColumn, ' ');
  out.resize(std::max(out.size(), kColumn), ' ');
  size_t column = kColumn;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (column > kColumn && column + 1 + end > kWidth) {
      out += '\n', out.append(kColumn, ' ');
      column = kColumn;
    }
    if (column > kColumn) out += ' ', ++column;
    out += text.substr(0, end);
    column += end;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out + '\n';
}

}  // namespace

HelpFormatter::HelpFormatter() {
  // CLI11 writes its labels in capitals from 2.5 on.
  for (const char* spelling : {"Positionals", "POSITIONALS"}) label(spelling, "Arguments");
  label("SUBCOMMANDS", "Subcommands");
}

std::string HelpFormatter::make_description(const CLI::App* app) const { return app->get_description() + '\n'; }

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  std::string text = make_description(app) + make_usage(app, name) + make_positionals(app);
  using namespace help_group;
  const auto has_group = [](const CLI::Option* option) {
    return option->nonpositional() && !option->get_group().empty();
  };
  size_t left = app->get_options(has_group).size();
  for (const char* group : {kInput, kServer, kOutput, kGeneration, kLayout, kMachine, kDiagnosis}) {
    const auto options = app->get_options(
        [&](const CLI::Option* option) { return option->get_group() == group && option->nonpositional(); });
    if (!options.empty()) text += make_group(group, false, options);
    left -= options.size();
  }
  expect(left == 0, "an option in a group that --help does not print");
  return text + make_subcommands(app, mode) + '\n' + make_footer(app);
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  if (is_positional) return in_columns(option->get_name(true, false), description_of(*option));
  const std::string type = option->get_type_size() == 0 ? "" : type_of(*option);
  return in_columns(name_of(*option) + (type.empty() ? "" : " " + type), description_of(*option));
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  return in_columns(command->get_display_name(true), command->get_description());
}

}  // namespace lfm2
