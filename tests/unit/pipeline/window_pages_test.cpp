// Which pages layers with a window hold, and which of those that nobody holds are reused first.
#include "stage/pipeline/window_pages.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "stage/pipeline/sequence_table.h"

namespace lfm2::test {
namespace {

using After = WindowPages::After;
using Ints = std::vector<int32_t>;

TEST(WindowPagesTest, APassedPageIsReusedFirst) {
  WindowPages windows({.pages = 9, .page_size = 4, .keeps_prefixes = true, .window = 5, .window_pages = 3});
  for (const int32_t page : {0, 1, 2}) windows.hold(page);
  EXPECT_THROW(windows.hold(3), Error);
  windows = WindowPages({.pages = 9, .page_size = 4, .keeps_prefixes = true, .window = 5, .window_pages = 3});
  for (const int32_t page : {0, 1, 2}) windows.hold(page);
  windows.release(0, After::kEnd);
  windows.release(1, After::kPassed);
  EXPECT_EQ(windows.held(), 1);
  windows.hold(4);  // takes that of 1
  EXPECT_FALSE(windows.has(1));
  EXPECT_TRUE(windows.has(0));
  windows.hold(0);  // is there
  windows.release(4, After::kEnd);
  windows.release(0, After::kPassed);  // was found with a prefix, and is newer than 4
  windows.hold(5);
  EXPECT_FALSE(windows.has(4));
  EXPECT_TRUE(windows.has(0));
  windows.forget(0);
  EXPECT_FALSE(windows.has(0));
  EXPECT_EQ(windows.most_held(), 3);
}

TEST(WindowPagesTest, APrefixEndsWhereItsWindowIsThere) {
  WindowPages windows({.pages = 9, .page_size = 4, .keeps_prefixes = true, .window = 6, .window_pages = 9});
  for (const int32_t page : {0, 2, 3, 5, 6}) windows.hold(page);  // five positions: two pages
  const auto resumable = [&](Ints prefix) {
    windows.keep_resumable(prefix);
    return prefix;
  };
  EXPECT_EQ(resumable({0, 1, 2, 3}), (Ints{0, 1, 2, 3}));
  EXPECT_EQ(resumable({0, 1, 2, 3, 4}), (Ints{0, 1, 2, 3}));
  EXPECT_EQ(resumable({0, 1, 2}), (Ints{0}));  // the first page has nothing before it
  EXPECT_EQ(resumable({1, 2}), (Ints{}));
}

// The table of a step names the pages that its tokens read. Pages before those may go to other sequences from then on.
TEST(WindowPagesTest, ASequenceMovesThroughThem) {
  CacheShape shape{.slots = 1, .pages = 8, .page_size = 2, .max_drafts = 2, .window = 3};
  shape.set_pages(8, 4);
  EXPECT_EQ(shape.window_pages, 6);
  SequenceTable table(shape);
  StepArrays arrays;
  const Admission one{
      .slot = 0, .prompt = 7, .num_tokens = 7, .request = {.max_new = 9}, .pages = {7, 6, 5, 4, 3, 2, 1, 0}};
  const auto window = [&] {
    Ints has;
    for (int32_t page = 8; page-- > 0;)
      if (table.windows()->has(page)) has.push_back(7 - page);
    return has;
  };
  table.apply({.admitted = {one}, .entries = {{.slot = 0, .count = 4}}}, 8, arrays);
  EXPECT_EQ(arrays.window_table, (Ints{0, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(window(), (Ints{1}));  // the next token, 4, reads 2 and 3
  table.apply({.entries = {{.slot = 0, .count = 3}}}, 8, arrays);
  EXPECT_EQ(arrays.window_table[1], 1);
  EXPECT_EQ(window(), (Ints{2, 3}));  // 7 reads 5 and 6
  table.apply({.entries = {{.slot = 0, .count = 3, .drafts = 2}}, .drafts = {5, 5}}, 8, arrays);
  EXPECT_EQ(window(), (Ints{3, 4}));  // both drafts may be wrong: 8 reads 6 and 7
  EXPECT_EQ(std::ssize(arrays.window_table), 3 * 8);
  table.apply({.entries = {{.slot = 0, .count = 1, .rejected = 2}}}, 8, arrays);
  EXPECT_EQ(arrays.positions, (Ints{8}));
  EXPECT_EQ(window(), (Ints{3, 4}));  // 9 reads 7 and 8
  table.apply({.entries = {{.slot = 0, .count = 1}}}, 8, arrays);
  EXPECT_EQ(window(), (Ints{4}));
  table.apply({.released = {0}}, 8, arrays);
  EXPECT_EQ(table.windows()->held(), 0);
}

TEST(WindowPagesTest, APrefixWithoutItsWindowIsRefused) {
  CacheShape shape{.slots = 2, .page_size = 2, .keeps_prefixes = true, .window = 3};
  shape.set_pages(8, 4);
  SequenceTable table(shape);
  StepArrays arrays;
  const auto admission = [](int32_t slot, int32_t cached, Ints pages) {
    return Admission{
        .slot = slot, .prompt = 6, .num_tokens = 6, .num_cached = cached, .request = {.max_new = 9}, .pages = pages};
  };
  table.apply({.admitted = {admission(0, 0, {0, 1, 2})}, .entries = {{.slot = 0, .count = 4}}}, 8, arrays);
  EXPECT_THROW(table.apply({.admitted = {admission(1, 4, {0, 2, 3})}}, 8, arrays), Error);  // 2 is not filled
  table = SequenceTable(shape);
  table.apply({.admitted = {admission(0, 0, {0, 1, 2})}, .entries = {{.slot = 0, .count = 4}}}, 8, arrays);
  table.apply({.admitted = {admission(1, 4, {0, 1, 3})}, .entries = {{.slot = 1, .count = 2}}}, 8, arrays);
  EXPECT_EQ(arrays.window_table[1], table.windows()->of(1));
}

}  // namespace
}  // namespace lfm2::test
