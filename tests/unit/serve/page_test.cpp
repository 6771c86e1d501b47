// The page's files as they stand in the program: whole, and leading nowhere else.
#include "serve/page/page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "serve/page/page_files.h"

namespace lfm2::test {
namespace {

using serve::PageFile;

const PageFile* find(std::string_view path) {
  const auto files = serve::page_files();
  const auto found = std::find_if(files.begin(), files.end(), [&](const PageFile& file) { return file.path == path; });
  return found == files.end() ? nullptr : &*found;
}

TEST(PageTest, FilesAreWhole) {
  ASSERT_NE(find("/"), nullptr);
  EXPECT_EQ(find("/")->content_type, "text/html; charset=utf-8");
  EXPECT_TRUE(find("/")->bytes.starts_with("<!DOCTYPE html>\n"));
  EXPECT_TRUE(find("/")->bytes.ends_with("</html>\n"));
  for (const PageFile& file : serve::page_files()) {
    EXPECT_TRUE(file.bytes.ends_with("\n")) << file.path;
    EXPECT_EQ(file.bytes.find('\0'), std::string_view::npos) << file.path;
  }
}

TEST(PageTest, EveryAddressIsOneOfThePagesFiles) {
  const std::regex address(R"re((?:src|href)="([^"]*)"|from "\./([^"]*)")re");
  int addresses = 0;
  for (const PageFile& file : serve::page_files()) {
    EXPECT_EQ(file.bytes.find("//www."), std::string_view::npos) << file.path;
    EXPECT_EQ(file.bytes.find("http"), std::string_view::npos) << file.path;
    const std::string text(file.bytes);
    for (std::sregex_iterator at(text.begin(), text.end(), address), end; at != end; ++at) {
      const std::string name = (*at)[1].matched ? (*at)[1] : (*at)[2];
      if (name == "data:,") continue;
      EXPECT_NE(find("/" + name), nullptr) << name;
      ++addresses;
    }
  }
  EXPECT_EQ(addresses, 3);
}

TEST(PageTest, IsReadAndNotWritten) {
  http::Router router;
  serve::add_page(router);
  for (const std::string& path : serve::page_paths()) {
    EXPECT_FALSE(router.refusal({.method = "GET", .path = path})) << path;
    EXPECT_FALSE(router.refusal({.method = "HEAD", .path = path})) << path;
    EXPECT_EQ(router.refusal({.method = "POST", .path = path}).value().status, 405) << path;
  }
  EXPECT_EQ(router.refusal({.method = "GET", .path = "/index.html"}).value().status, 404);
}

}  // namespace
}  // namespace lfm2::test
