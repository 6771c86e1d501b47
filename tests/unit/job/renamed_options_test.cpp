// Older spellings of options.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "stage/job/options.h"

namespace lfm2 {
namespace {

ParsedCommandLine parse_older(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "lfm2_stage");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

// What is said of the value, which is refused.
std::string refusal_of(const char* spelling, const char* value) {
  const ParsedCommandLine parsed = parse_older({"--weights", "s", spelling, value});
  EXPECT_EQ(parsed.exit_code, 64);
  return parsed.text;
}

// Each option with its older spelling, which means the same, is refused in the same way, and is not in any help.
TEST(RenamedOptionsTest, OlderSpellingsAreHiddenAliases) {
  struct Given {
    std::string name, value;
    std::vector<const char*> others;
    int64_t (*meaning)(const Options&);
  };
  const std::vector<Given> all = {
      {"--max-tokens", "7", {}, [](const Options& o) { return o.generation.sampling.max_new.value_or(0); }},
      {"--page-size", "7", {"--max-tokens", "1"}, [](const Options& o) { return o.generation.page_size; }},
      {"--max-batched-tokens", "7", {"--max-tokens", "1"}, [](const Options& o) { return o.generation.prompt_tokens; }},
      {"--max-num-seqs", "7", {"--max-tokens", "1"}, [](const Options& o) { return o.generation.max_sequences; }},
      {"--reference", "r.h5", {}, [](const Options& o) { return int64_t{o.reference == "r.h5"}; }},
      {"--fp32-math", "simt", {}, [](const Options& o) { return int64_t{o.plain_fp32}; }}};
  ASSERT_EQ(all.size(), std::size(kRenamedOptions));
  for (const Given& one : all) {
    SCOPED_TRACE(one.name);
    const auto renamed = std::ranges::find(kRenamedOptions, one.name, &RenamedOption::name);
    ASSERT_NE(renamed, std::end(kRenamedOptions));
    const std::string joined = fmt::format("{}={}", renamed->old, one.value);
    for (const std::vector<const char*>& words : {std::vector<const char*>{one.name.c_str(), one.value.c_str()},
                                                  {renamed->old, one.value.c_str()},
                                                  {joined.c_str()}}) {
      std::vector<const char*> arguments{"--weights", "s"};
      arguments.insert(arguments.end(), words.begin(), words.end());
      arguments.insert(arguments.end(), one.others.begin(), one.others.end());
      const ParsedCommandLine parsed = parse_older(arguments);
      ASSERT_TRUE(parsed.run) << parsed.text;
      EXPECT_EQ(one.meaning(parsed.options), one.value == "7" ? 7 : 1);
    }
    for (const char* spelling : {renamed->old, renamed->name})
      EXPECT_EQ(refusal_of(spelling, "").find(fmt::format("lfm2_stage: {}: ", spelling)), 0u);
    if (one.value != "r.h5") {  // any name of a file is accepted
      EXPECT_EQ(refusal_of(renamed->old, "x"), refusal_of(renamed->name, "x"));
    }
    for (const std::vector<const char*>& command :
         {std::vector<const char*>{"--help"}, {"chat", "--help"}, {"serve", "--help"}, {"doctor", "--help"}}) {
      const std::string help = parse_older(command).text;
      EXPECT_EQ(help.find(renamed->old + std::string(" ")), std::string::npos) << help;
      EXPECT_EQ(help.find(renamed->old + std::string(",")), std::string::npos) << help;
    }
    EXPECT_NE(parse_older({"--help"}).text.find("  " + one.name + " "), std::string::npos);
  }
  EXPECT_EQ(parse_older({"--weights", "s", "--cache-page", "8"}).text,
            "lfm2_stage: --page-size requires --max-tokens (see --help)\n");
  EXPECT_TRUE(
      parse_older({"serve", "--weights", "s", "--generate", "3", "--max-sequences", "2", "--fp32", "simt"}).run);
  EXPECT_TRUE(parse_older({"chat", "--weights", "s", "--cache-page", "8", "--prefill-chunk", "2"}).run);
}

}  // namespace
}  // namespace lfm2
