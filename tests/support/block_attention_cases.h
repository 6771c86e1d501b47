// The case of cached_attention whose rows read to the end of their block, which the tests of both backends share: each
// row has the bits of a whole sample that ends with its query.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "support/index_cast.h"
#include "support/ops_under_test.h"

namespace lfm2::test {

struct BlockAttentionCase {
  AttentionShape shape;
  int64_t block = 0, page_size = 0;
  std::vector<int64_t> starts;  // tokens of each text before its block
};

inline HostTensor ints_of(const std::vector<int32_t>& values) {
  HostTensor tensor(DType::kI32, {std::ssize(values)});
  std::memcpy(tensor->data, values.data(), tensor->bytes());
  return tensor;
}

// The rows of all texts, [tokens, columns]: first the context, then the block, of each.
struct BlockTexts {
  explicit BlockTexts(const BlockAttentionCase& c) : block(c.block) {
    for (const int64_t start : c.starts) {
      firsts.push_back(tokens);
      lengths.push_back(start + c.block);
      tokens += lengths.back();
      pages = std::max(pages, (lengths.back() + c.page_size - 1) / c.page_size);
    }
  }
  int64_t texts() const { return std::ssize(lengths); }
  int64_t rows() const { return texts() * block; }
  // The row of the block row number `row`; those of a place in the block lie side by side.
  int64_t row_of(int64_t row) const {
    const size_t text = at(row % texts());
    return firsts[text] + lengths[text] - block + row / texts();
  }
  int64_t block, tokens = 0, pages = 0;
  std::vector<int64_t> firsts, lengths;
};

// Attention of whole samples that end with the query of each row of the blocks.
inline HostTensor block_attention_of_samples(OpsUnderTest& under, const BlockAttentionCase& c, const BlockTexts& texts,
                                             const HostTensor& qkv) {
  std::vector<int32_t> lengths;
  for (int64_t row = 0; row < texts.rows(); ++row)
    lengths.push_back(static_cast<int32_t>(texts.lengths[at(row % texts.texts())]));
  const PackedBatch packed(lengths);
  const int64_t width = c.shape.heads * c.shape.head_dim;
  HostTensor samples(qkv->dtype, {packed.tokens(), c.shape.qkv_columns()}), all(qkv->dtype, {packed.tokens(), width}),
      last(qkv->dtype, {texts.rows(), width});
  int64_t end = 0;
  for (int64_t row = 0; row < texts.rows(); ++row) {
    const size_t text = at(row % texts.texts());
    const Tensor source = qkv->rows(texts.firsts[text], texts.lengths[text]);
    std::memcpy(samples->rows(end, texts.lengths[text]).data, source.data, source.bytes());
    end += texts.lengths[text];
    const Tensor query = qkv->rows(texts.row_of(row), 1);
    std::memcpy(samples->rows(end - 1, 1).data, query.data, static_cast<size_t>(width) * size_bytes(qkv->dtype));
  }
  under.run(
      [&](Ops& ops, const Tensor& rows, const Tensor& positions, const Tensor& offsets, const Tensor& out) {
        Batch batch = batch_of(packed, positions, offsets);
        batch.output_tokens = 1;
        ops.attention(rows, c.shape, batch, out);
      },
      samples, packed.positions, packed.offsets, all);
  end = 0;
  for (int64_t row = 0; row < texts.rows(); ++row) {
    end += texts.lengths[at(row % texts.texts())];
    std::memcpy(last->rows(row, 1).data, all->rows(end - 1, 1).data, last->rows(row, 1).bytes());
  }
  return last;
}

inline void check_block_attention(OpsUnderTest& under, const BlockAttentionCase& c, DType act) {
  const BlockTexts texts(c);
  HostTensor qkv(act, {texts.tokens, c.shape.qkv_columns()});
  qkv.fill_random(3, 1.5f);
  HostTensor queries(act, {texts.rows(), c.shape.qkv_columns()}),
      out(act, {texts.rows(), c.shape.heads * c.shape.head_dim});
  std::vector<int32_t> positions, sequence_of, offsets{0}, pages, ends, single(at(texts.rows())),
      singles(at(texts.rows() + 1)), block_pages;
  for (int64_t text = 0; text < texts.texts(); ++text) {
    for (int64_t position = 0; position < texts.lengths[at(text)]; ++position) {
      positions.push_back(static_cast<int32_t>(position));
      sequence_of.push_back(static_cast<int32_t>(text));
    }
    offsets.push_back(static_cast<int32_t>(positions.size()));
    for (int64_t page = 0; page < texts.pages; ++page)
      pages.push_back(static_cast<int32_t>(page * texts.texts() + text));
  }
  for (int64_t row = 0; row < texts.rows(); ++row) {
    const Tensor source = qkv->rows(texts.row_of(row), 1);
    std::memcpy(queries->rows(row, 1).data, source.data, source.bytes());
    const int64_t text = row % texts.texts();
    ends.push_back(static_cast<int32_t>(texts.lengths[at(text)] - 1));
    block_pages.insert(block_pages.end(), pages.begin() + text * texts.pages, pages.begin() + (text + 1) * texts.pages);
  }
  std::iota(single.begin(), single.end(), 0);
  std::iota(singles.begin(), singles.end(), 0);
  HostTensor keys(act, {texts.pages * texts.texts(), c.page_size, c.shape.kv_heads, c.shape.head_dim}),
      values(act, {texts.pages * texts.texts(), c.page_size, c.shape.kv_heads, c.shape.head_dim});
  const int64_t longest = *std::max_element(texts.lengths.begin(), texts.lengths.end());
  under.run(
      [&](Ops& ops, const Tensor& all, const Tensor& own_positions, const Tensor& own_sequences,
          const Tensor& own_offsets, const Tensor& own_pages, const Tensor& k, const Tensor& v) {
        Batch batch{.positions = own_positions,
                    .offsets = own_offsets,
                    .tokens = texts.tokens,
                    .sequences = texts.texts(),
                    .max_length = longest};
        batch.sequence_of = own_sequences;
        batch.page_table = own_pages.reshape({texts.texts(), texts.pages});
        ops.append_keys_values(all, c.shape, batch, {k, v});
      },
      qkv, ints_of(positions), ints_of(sequence_of), ints_of(offsets), ints_of(pages), keys, values);
  under.run(
      [&](Ops& ops, const Tensor& rows, const Tensor& own_positions, const Tensor& own_sequences,
          const Tensor& own_offsets, const Tensor& own_pages, const Tensor& k, const Tensor& v, const Tensor& result) {
        Batch batch{.positions = own_positions,
                    .offsets = own_offsets,
                    .tokens = texts.rows(),
                    .sequences = texts.rows(),
                    .max_length = longest};
        batch.singles = texts.rows();
        batch.sequence_of = own_sequences;
        batch.page_table = own_pages.reshape({texts.rows(), texts.pages});
        ops.cached_attention(rows, c.shape, batch, {k, v}, result);
      },
      queries, ints_of(ends), ints_of(single), ints_of(singles), ints_of(block_pages), keys, values, out);
  const HostTensor expected = block_attention_of_samples(under, c, texts, qkv);
  EXPECT_EQ(std::memcmp(out->data, expected->data, out->bytes()), 0);
}

// `longest`: tokens of the longest text before its block.
inline void check_block_attention(const AllUnderTest& all, int64_t longest) {
  const BlockAttentionCase cases[] = {
      {{4, 2, 16}, 7, 4, {1, 9, 30}}, {{8, 2, 64}, 9, 16, {3, longest}}, {{6, 3, 8}, 4, 1, {1, 2, 12}}};
  for (OpsUnderTest* under : all)
    for (const BlockAttentionCase& c : cases)
      for (const DType act : kFloatTypes) {
        SCOPED_TRACE(fmt::format("{}, {}, heads {} {} {}", under->name(), name(act), c.shape.heads, c.shape.kv_heads,
                                 c.shape.head_dim));
        check_block_attention(*under, c, act);
      }
}

}  // namespace lfm2::test
