// What HelpFormatter prints of options, whatever the command.
#include "base/options/help_formatter.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/error.h"

namespace lfm2 {
namespace {

class HelpFormatterTest : public testing::Test {
 protected:
  HelpFormatterTest() {
    app_.formatter(std::make_shared<HelpFormatter>());
    app_.get_help_ptr()->group(help_group::kDiagnosis);
  }
  CLI::App app_{"Does something.", "program"};
};

TEST_F(HelpFormatterTest, HeadingsOfEveryVersionOfCli11) {
  const HelpFormatter formatter;
  for (const char* spelling : {"Positionals", "POSITIONALS"}) EXPECT_EQ(formatter.get_label(spelling), "Arguments");
  for (const char* spelling : {"Subcommands", "SUBCOMMANDS"}) EXPECT_EQ(formatter.get_label(spelling), "Subcommands");
}

TEST_F(HelpFormatterTest, AnOptionOfAnUnknownGroupIsABug) {
  app_.add_flag("--in-none")->group("");
  EXPECT_EQ(app_.help().find("--in-none"), std::string::npos);
  app_.add_flag("--in-another")->group("Another");
  try {
    app_.help();
    FAIL() << "--in-another would not be in --help";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kSoftware);
  }
}

TEST_F(HelpFormatterTest, OptionsWithoutALongName) {
  begin_group(app_, help_group::kInput);
  CLI::Option *a = app_.add_flag("-a"), *b = app_.add_flag("-b,--both");
  app_.add_flag("--third")->description("A third")->needs(a)->excludes(b);
  EXPECT_NE(app_.help().find("  --third                     A third (needs -a; not with --both)\n"), std::string::npos)
      << app_.help();
}

}  // namespace
}  // namespace lfm2
