// What steps do to the sequences of a generation, and the arrays that they make.
#include "stage/pipeline/sequence_table.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace lfm2::test {
namespace {

TEST(SequenceTableTest, RefusesStepsThatDoNotFit) {
  SequenceTable table({.slots = 2, .pages = 2, .page_size = 4});
  StepArrays arrays;
  const auto admission = [](int32_t slot, int32_t sample, int32_t prompt, std::vector<int32_t> pages) {
    return Admission{.slot = slot,
                     .prompt = prompt,
                     .num_tokens = prompt,
                     .request = {.sample = sample, .max_new = 9},
                     .pages = pages};
  };
  EXPECT_THROW(table.apply({.released = {0}}, 8, arrays), Error);
  EXPECT_THROW(table.apply({.admitted = {admission(0, 0, 9, {0, 1, 2})}}, 8, arrays), Error);  // no such page
  table = SequenceTable({.slots = 2, .pages = 2, .page_size = 4});
  table.apply({.admitted = {admission(0, 0, 4, {1})}, .entries = {{0, 4}}}, 8, arrays);
  EXPECT_EQ(table.free_pages(), 1);
  EXPECT_THROW(table.apply({.admitted = {admission(0, 1, 1, {0})}}, 8, arrays), Error);  // a slot that is taken
  EXPECT_THROW(table.apply({.entries = {{0, 1}}}, 8, arrays), Error);                    // no page for the token
  table.apply({.added = {{0, 0}}, .entries = {{0, 1}}}, 8, arrays);
  EXPECT_EQ(table.free_pages(), 0);
  EXPECT_THROW(table.apply({.admitted = {admission(1, 1, 1, {1})}}, 8, arrays), Error);  // a page that is taken
  EXPECT_THROW(table.apply({.entries = {{0, 4}}}, 8, arrays), Error);
  EXPECT_THROW(table.apply({.entries = {{0, 3}}}, 1, arrays), Error);  // two pages, beyond the table's width
}

// Of each sequence's part of a step the last tokens go on: from its states where those are all that it has in the step,
// otherwise as a sample of their own.
TEST(SequenceTableTest, TailsOfPrompts) {
  using Ints = std::vector<int32_t>;
  SequenceTable table({.slots = 4, .pages = 8, .page_size = 16}, 3);
  StepArrays arrays;
  const auto admission = [](int32_t slot, int32_t prompt, int32_t page) {
    return Admission{.slot = slot,
                     .prompt = prompt,
                     .num_tokens = prompt,
                     .request = {.sample = slot, .max_new = 9},
                     .pages = {page}};
  };
  table.apply({.admitted = {admission(0, 1, 0), admission(1, 3, 1)}, .entries = {{0, 1}, {1, 3}}}, 1, arrays);
  EXPECT_EQ(arrays.tail_tokens(), 0);
  EXPECT_EQ(arrays.tokens_left(), 4);
  table.apply({.admitted = {admission(2, 9, 2), admission(3, 5, 3)}, .entries = {{0, 1}, {2, 4}, {3, 2}, {1, 1}}}, 1,
              arrays);
  EXPECT_EQ(arrays.tokens, 8);
  EXPECT_EQ(arrays.tokens_left(), 7);
  EXPECT_EQ(arrays.tails.rows, (Ints{0, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(arrays.tails.positions, (Ints{1, 0, 1, 2, 0, 1, 3}));
  EXPECT_EQ(arrays.tails.offsets, (Ints{0, 1, 4, 6, 7}));
  EXPECT_EQ(arrays.tails.sequence_of, (Ints{0, 1, 1, 1, 2, 2, 3}));
  EXPECT_EQ(arrays.last_rows, (Ints{0, 6}));
  table.apply({.entries = {{0, 1}, {3, 3}, {2, 5}}}, 1, arrays);
  EXPECT_EQ(arrays.tails.positions, (Ints{2, 2, 3, 4, 0, 1, 2}));
  EXPECT_EQ(arrays.tails.rows, (Ints{0, 1, 2, 3, 6, 7, 8}));
  EXPECT_EQ(arrays.last_rows, (Ints{0, 3, 6}));
  // Whoever asks about a prompt gets all of its rows.
  Admission asked = admission(1, 5, 4);
  asked.request.hidden = Hidden::kMean;
  table.apply({.released = {1}, .admitted = {asked}, .entries = {{0, 1}, {1, 5}}}, 1, arrays);
  EXPECT_EQ(arrays.tail_tokens(), 0);
  EXPECT_EQ(arrays.last_rows, (Ints{0, 5}));
  EXPECT_THROW(SequenceTable({.slots = 2, .pages = 2, .page_size = 4, .keeps_prefixes = true}, 3), Error);
}

// A sequence may begin with whole pages that others have, and goes on from the state behind the last of them.
TEST(SequenceTableTest, APrefixIsOfWholePages) {
  const CacheShape shape{.slots = 2, .pages = 6, .page_size = 4, .keeps_prefixes = true};
  SequenceTable table(shape);
  StepArrays arrays;
  table.apply({.admitted = {{.slot = 0, .prompt = 9, .num_tokens = 9, .pages = {5, 3, 1}}}, .entries = {{0, 9}}}, 4,
              arrays);
  const Admission second{.slot = 1,
                         .prompt = 10,
                         .num_tokens = 10,
                         .num_cached = 8,
                         .request = {.sample = 1, .rule = {.presence_penalty = 1}},
                         .pages = {5, 3, 0}};
  const Step step{.admitted = {second}, .entries = {{1, 2}}, .counted = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19}};
  const auto refused = [&](const auto& change) {
    SequenceTable copy = table;
    StepArrays unused;
    Step wrong = step;
    change(wrong);
    EXPECT_THROW(copy.apply(wrong, 4, unused), Error);
  };
  refused([](Step& wrong) { wrong.admitted[0].num_cached = 7; });
  refused([](Step& wrong) { wrong.admitted[0].num_cached = 12; });
  refused([](Step& wrong) { wrong.admitted[0].num_cached = 4; });  // then page 3 would be written
  refused([](Step& wrong) { wrong.counted.pop_back(); });
  refused([](Step& wrong) { wrong.counted.resize(3); });
  refused([](Step& wrong) { wrong.counted.push_back(1); });
  table.apply(step, 4, arrays);
  EXPECT_EQ(table.free_pages(), 2);
  EXPECT_EQ(arrays.positions, (std::vector<int32_t>{8, 9}));
  EXPECT_EQ(arrays.page_table, (std::vector<int32_t>{5, 3, 0, 0}));
  EXPECT_EQ(arrays.states, (std::vector<int32_t>{static_cast<int32_t>(shape.first_page_row()) + 3, 2}));
  EXPECT_EQ(arrays.counted, (std::vector<int32_t>{18, 19}));
  EXPECT_EQ(arrays.prefixes.ids, (std::vector<int32_t>{10, 11, 12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(arrays.prefixes.positions, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(arrays.prefixes.offsets, (std::vector<int32_t>{0, 8}));
  EXPECT_EQ(arrays.prefixes.keepers, (std::vector<int32_t>{1, 10}));
  SequenceTable both = table;
  both.apply({.entries = {{1, 1}, {0, 1}}, .counted = {20}}, 4, arrays);
  EXPECT_EQ(arrays.counted,
            (std::vector<int32_t>{20, 0}));  // as long as the ids, also where the last ones do not count
  table.apply({.entries = {{1, 1}}, .counted = {20}}, 4, arrays);
  EXPECT_EQ(arrays.states, (std::vector<int32_t>{2, 3}));
  EXPECT_TRUE(arrays.prefixes.ids.empty());
  table.apply({.released = {0}}, 4, arrays);
  EXPECT_EQ(table.free_pages(), 3);
  table.apply({.released = {1}}, 4, arrays);
  EXPECT_EQ(table.free_pages(), 6);
}

}  // namespace
}  // namespace lfm2::test
