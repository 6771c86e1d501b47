// Cases of top_log_probs, target_log_probs, count_tokens, adjust_logits and sample, which the tests of both backends
// run.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "support/index_cast.h"
#include "support/ops_under_test.h"

namespace lfm2::test {

// Random logits; coarse ones have very many ties.
inline HostTensor random_logits(int64_t rows, int64_t vocab, bool coarse) {
  HostTensor logits(DType::kF32, {rows, vocab});
  logits.fill_random(1, 5.0f);
  if (coarse)
    for (size_t i = 0; i < logits.size(); ++i) logits.set(i, std::round(logits.get(i) / 4));
  return logits;
}

inline void expect_log_prob(double actual, double expected) {
  // Its own rounding, and the relative error of the sum over a row.
  EXPECT_NEAR(actual, expected, 0x1p-24 * (2 * std::fabs(expected) + 16));
}

inline void check_top_log_probs(OpsUnderTest& under) {
  for (const bool coarse : {false, true})
    for (const auto& [rows, vocab] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {2, 1023}, {5, 65536}, {2, 50001}}) {
      const HostTensor logits = random_logits(rows, vocab, coarse);
      const std::vector<double> expected = reference::log_softmax(logits);
      std::vector<std::vector<int32_t>> orders;
      for (int64_t row = 0; row < rows; ++row)
        orders.push_back(reference::descending(logits->as<float>() + row * vocab, vocab));
      for (const int64_t k : {int64_t{1}, int64_t{2}, int64_t{5}, int64_t{64}, int64_t{1000}, int64_t{3000}, vocab}) {
        if (k > vocab) continue;
        SCOPED_TRACE(fmt::format("{} of {}{}", k, vocab, coarse ? ", coarse" : ""));
        HostTensor ids(DType::kI32, {rows, k}), log_probs(DType::kF32, {rows, k});
        under.run([](Ops& ops, const auto&... tensors) { ops.top_log_probs(tensors...); }, logits, ids, log_probs);
        for (int64_t i = 0; i < rows * k; ++i) {
          const int32_t id = orders[at(i / k)][at(i % k)];
          ASSERT_EQ(ids->as<int32_t>()[i], id) << "row " << i / k;
          expect_log_prob(log_probs.get(at(i)), expected[at(i / k * vocab + id)]);
        }
      }
    }
}

inline void target_log_probs(OpsUnderTest& under, const HostTensor& logits, const HostTensor& targets,
                             const HostTensor& log_probs, const HostTensor& is_greedy) {
  under.run([](Ops& ops, const auto&... tensors) { ops.target_log_probs(tensors...); }, logits, targets, log_probs,
            is_greedy);
}

inline void check_target_log_probs(OpsUnderTest& under) {
  for (const bool coarse : {false, true})
    for (const auto& [rows, vocab] :
         {std::pair<int64_t, int64_t>{1, 1}, {7, 7}, {64, 1023}, {130, 65536}, {33, 50001}}) {
      SCOPED_TRACE(fmt::format("{} x {}{}", rows, vocab, coarse ? ", coarse" : ""));
      const HostTensor logits = random_logits(rows, vocab, coarse);
      const std::vector<double> expected = reference::log_softmax(logits);
      HostTensor targets(DType::kI32, {rows}), log_probs(DType::kF32, {rows}), is_greedy(DType::kI32, {rows});
      std::vector<int32_t> best;
      for (int64_t row = 0; row < rows; ++row) {  // every other row's target is its top-1 token
        const float* logit = logits->as<float>() + row * vocab;
        best.push_back(static_cast<int32_t>(std::max_element(logit, logit + vocab) - logit));
        targets->as<int32_t>()[row] = row % 2 == 0 ? best.back() : static_cast<int32_t>(row * 7919 % vocab);
      }
      target_log_probs(under, logits, targets, log_probs, is_greedy);
      for (int64_t row = 0; row < rows; ++row) {
        const int32_t target = targets->as<int32_t>()[row];
        EXPECT_EQ(is_greedy.get(at(row)), target == best[at(row)]) << "row " << row;
        expect_log_prob(log_probs.get(at(row)), expected[at(row * vocab + target)]);
      }
    }
}

inline void check_log_probs_of_nans(OpsUnderTest& under) {
  HostTensor logits(DType::kF32, {5, 3}), ids(DType::kI32, {5, 3}), top(DType::kF32, {5, 3}), targets(DType::kI32, {5}),
      log_probs(DType::kF32, {5}), is_greedy(DType::kI32, {5});
  logits.fill({NAN, 1, NAN, NAN, NAN, NAN, -HUGE_VAL, 0, -HUGE_VAL, 1, HUGE_VAL, 2, 0, -0.0, 0});
  under.run([](Ops& ops, const auto&... tensors) { ops.top_log_probs(tensors...); }, logits, ids, top);
  EXPECT_EQ(ids.values(), (std::vector<double>{1, 0, 2, 0, 1, 2, 1, 0, 2, 1, 2, 0, 0, 1, 2}));
  EXPECT_TRUE(std::isnan(top.get(0)));
  EXPECT_EQ(top.get(6), 0);
  EXPECT_EQ(top.get(7), -HUGE_VAL);
  targets.fill({1, 0, 1, 2, 1});
  target_log_probs(under, logits, targets, log_probs, is_greedy);
  EXPECT_EQ(is_greedy.values(), (std::vector<double>{1, 1, 1, 0, 0}));
  EXPECT_TRUE(std::isnan(log_probs.get(0)));
  EXPECT_EQ(log_probs.get(2), 0);
}

// Draws by one rule from every row, and expects the token of the specification. A log-probability has the bits of
// top_log_probs, and is NaN exactly where no token can be drawn.
inline void check_sample(OpsUnderTest& under, const HostTensor& logits, const SamplingRule& rule) {
  const int64_t rows = logits->dim(0), vocab = logits->dim(1), k = vocab < 2000 ? vocab : 64;
  SCOPED_TRACE(fmt::format("vocab {}, temperature {}, top_k {}, top_p {}, min_p {}", vocab, rule.temperature,
                           rule.top_k, rule.top_p, rule.min_p));
  HostTensor draws(DType::kI32, {rows, 2}), ids(DType::kI32, {rows}), log_probs(DType::kF32, {rows});
  const HostTensor rules = rules_of(rule, rows), top_ids(DType::kI32, {rows, k}), top(DType::kF32, {rows, k});
  for (int64_t row = 0; row < rows; ++row) {
    draws.set(at(2 * row), static_cast<double>(row * 7919));
    draws.set(at(2 * row + 1), static_cast<double>(row % 3));
  }
  under.run(
      [](Ops& ops, const Tensor& in, const Tensor& numbers, const Tensor& each, const Tensor& drawn, const Tensor& of,
         const Tensor& best, const Tensor& of_best) {
        ops.sample(in, {}, numbers, each, drawn, of);
        ops.top_log_probs(in, best, of_best);
      },
      logits, draws, rules, ids, log_probs, top_ids, top);
  for (int64_t row = 0; row < rows; ++row) {
    const float *logit = logits->as<float>() + row * vocab, *end = logit + vocab;
    const int32_t id = ids->as<int32_t>()[row];
    const auto number = static_cast<int32_t>(row * 7919), place = static_cast<int32_t>(row % 3);
    ASSERT_EQ(id, reference::sample(logit, vocab, rule, number, place)) << "row " << row;
    const bool drawable = std::none_of(logit, end, [](float x) { return std::isnan(x) || x == HUGE_VALF; }) &&
                          std::any_of(logit, end, [](float x) { return x != -HUGE_VALF; });
    EXPECT_EQ(std::isnan(log_probs.get(at(row))), !drawable) << "row " << row;
    for (int64_t i = row * k; i < (row + 1) * k; ++i)
      if (top_ids->as<int32_t>()[i] == id) {
        EXPECT_EQ(log_probs->as<uint32_t>()[row], top->as<uint32_t>()[i]) << "row " << row;
      }
  }
}

inline void check_sample(OpsUnderTest& under, std::initializer_list<int64_t> vocabularies) {
  for (const int64_t vocab : vocabularies)
    for (const float spread : {0.0f, 0.5f, 3.0f, 30.0f}) {
      const int64_t rows = vocab < 2000 ? 12 : 4;
      HostTensor logits(DType::kF32, {rows, vocab});
      logits.fill_random(static_cast<uint32_t>(vocab), spread);
      for (int64_t row = 1; row < rows; row += 2)  // rows with many ties
        for (int64_t i = row * vocab; i < (row + 1) * vocab; ++i)
          logits.set(at(i), std::round(logits.get(at(i)) * 2) / 2);
      if (vocab > 2) logits.set(1, -HUGE_VAL);
      check_sample(under, logits, {0, vocab, 0.5f, 1, 0.1f});
      for (const float temperature : {1e-6f, 0.3f, 1.0f, 5.0f})
        for (const int64_t top_k : {int64_t{0}, int64_t{1}, int64_t{50}, vocab / 2, vocab - 1, vocab + 5})
          for (const auto& [top_p, min_p] : {std::pair{1.0f, 0.0f},
                                             {1.0f, 1e-9f},
                                             {1.0f, 0.1f},
                                             {1.0f, 1.0f},
                                             {0.95f, 0.0f},
                                             {0.95f, 0.1f},
                                             {0.95f, 1.0f},
                                             {0.3f, 0.0f},
                                             {1e-9f, 0.0f},
                                             {1e-40f, 0.0f}}) {
            if (vocab > 2000 && temperature < 0.1f) continue;  // sorting takes long
            check_sample(under, logits,
                         {temperature, top_k, top_p, 0x123456789abcdefu + static_cast<uint64_t>(top_k), min_p});
            if (testing::Test::HasFatalFailure()) return;
          }
    }
}

inline void check_sample_of_nans(OpsUnderTest& under) {
  const int64_t vocab = 5000, rows = 8;
  HostTensor logits(DType::kF32, {rows, vocab});
  logits.fill_random(1, 3.0f);
  const auto fill = [&](int64_t row, double value, int64_t step) {
    for (int64_t i = 0; i < vocab; i += step) logits.set(at(row * vocab + i), value);
  };
  fill(0, -HUGE_VAL, 1);
  fill(1, -HUGE_VAL, 2);
  fill(2, std::nan(""), 1);
  fill(3, std::nan(""), 3);
  fill(4, HUGE_VAL, 1700);
  fill(5, 0.0, 1);
  fill(5, -0.0, 2);
  fill(6, 1e30, 1000);
  fill(7, -1e30, 2);
  for (const float temperature : {0.0f, 1.0f, 1e-30f, 1e30f})
    for (const int64_t top_k : {0, 3, 2500})
      for (const float top_p : {1.0f, 0.5f}) check_sample(under, logits, {temperature, top_k, top_p, 5});
}

// Sequences that grow through many batches: of chunks, of single tokens, and of both. Slot 2 keeps nothing, and slot 4
// begins again in each batch.
inline void check_count_tokens(OpsUnderTest& under) {
  constexpr size_t kSequences = 5, kUnkept = 2, kBeginsAgain = 4;
  for (const int64_t vocab : {1, 33, 65536}) {
    std::mt19937 random(3);
    HostTensor counts(DType::kI32, {int64_t{kSequences}, vocab});
    counts.fill(77);  // of sequences before
    std::vector<reference::Before> before(kSequences);
    for (int batch = 0; batch < 6; ++batch) {
      SCOPED_TRACE(fmt::format("vocab {}, batch {}", vocab, batch));
      const PackedBatch packed(batch % 2 == 0 ? std::vector<int32_t>{1, 700, 3, 1, 300}
                                              : std::vector<int32_t>(kSequences, 1));
      HostTensor ids(DType::kI32, {packed.tokens()}), keepers(DType::kI32, {int64_t{kSequences}, 2});
      before[kBeginsAgain] = {};
      for (size_t slot = 0; slot < kSequences; ++slot) {
        const size_t prompt = slot == 1 ? 400 : 2;
        auto& [of_prompt, of_text] = before[slot];
        keepers.set(2 * slot, slot == kUnkept ? -1.0 : static_cast<double>(slot));
        keepers.set(2 * slot + 1, static_cast<double>(prompt));
        for (int64_t token = packed.offset(slot); token < packed.offset(slot + 1); ++token) {
          const auto id = static_cast<int32_t>(random() % static_cast<uint64_t>(std::min<int64_t>(vocab, 40)));
          ids.set(at(token), id);
          packed.positions->as<int32_t>()[token] = static_cast<int32_t>(of_prompt.size() + of_text.size());
          (of_prompt.size() < prompt ? of_prompt : of_text).push_back(id);
        }
      }
      under.run([&](Ops& ops, const Tensor& fed, const Tensor& keep, const Tensor& positions, const Tensor& offsets,
                    const Tensor& to) { ops.count_tokens(fed, keep, batch_of(packed, positions, offsets), to); },
                ids, keepers, packed.positions, packed.offsets, counts);
      for (size_t slot = 0; slot < kSequences; ++slot) {
        const auto* row = counts->as<int32_t>() + static_cast<int64_t>(slot) * vocab;
        const std::vector<double> expected =
            slot == kUnkept ? std::vector<double>(at(vocab), 77) : reference::count_tokens(before[slot], vocab);
        ASSERT_EQ(std::vector<double>(row, row + vocab), expected) << "slot " << slot;
      }
    }
  }
}

inline std::vector<SamplingRule> rules_of_all_kinds() {
  return {{},
          {.repetition_penalty = 1.3f},
          {.temperature = 1, .top_p = 0.9f, .seed = 3, .presence_penalty = 0.7f, .frequency_penalty = 0.3f},
          {.temperature = 1, .seed = 5, .min_p = 0.1f, .biases = 3},
          {.banned = 2, .min_tokens = 4},
          {.temperature = 0.7f,
           .top_k = 30,
           .top_p = 0.95f,
           .seed = 7,
           .min_p = 0.02f,
           .repetition_penalty = 0.8f,
           .presence_penalty = -1.1f,
           .frequency_penalty = 0.1f,
           .biases = 2,
           .banned = 1,
           .min_tokens = 2},
          {.constrained = 1},
          {.temperature = 1,
           .top_p = 0.9f,
           .seed = 9,
           .repetition_penalty = 1.2f,
           .biases = 1,
           .banned = 3,
           .min_tokens = 4,
           .constrained = 1}};
}

// A mask for each row, of the tokens that are allowed.
inline HostTensor masks_of(int64_t rows, int64_t vocab, bool (*allowed)(int64_t id)) {
  HostTensor masks(DType::kI32, {rows, mask_words(vocab)});
  std::fill_n(masks->as<uint32_t>(), rows * mask_words(vocab), 0u);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t id = 0; id < vocab; ++id)
      if (allowed(id)) masks->as<uint32_t>()[row * mask_words(vocab) + id / 32] |= 1u << (id % 32);
  return masks;
}

// Rows of all kinds side by side, one with a NaN, whose tokens count_tokens has counted, or which are drafts: the bits
// of the specification, and the tokens that it draws from them.
inline void check_adjust_logits(OpsUnderTest& under, int64_t vocab) {
  const std::vector<SamplingRule> each = rules_of_all_kinds();
  const auto rows = std::ssize(each);
  const int64_t max_edits = 4, prompt = 5;
  constexpr int64_t kMaxDrafts = 5;
  std::mt19937 random(5);
  HostTensor logits(DType::kF32, {rows, vocab}), out(DType::kF32, {rows, vocab}), draws(DType::kI32, {rows, 2}),
      slots(DType::kI32, {rows}), rules(DType::kI32, {rows, kRuleWords}), counts(DType::kI32, {rows, vocab}),
      edit_words(DType::kI32, {rows, max_edits, kEditWords}), keepers(DType::kI32, {rows, 2}),
      drawn(DType::kI32, {rows}), log_probs(DType::kF32, {rows});
  logits.fill_random(1, 4.0f);
  logits.set(at(vocab + 5), -HUGE_VAL);
  logits.set(at(2 * vocab + 7), NAN);
  // In one row all tokens that masks allow are impossible without them.
  const auto allowed = [](int64_t id) { return id % 3 == 1; };
  const HostTensor masks = masks_of(rows, vocab, allowed);
  for (int64_t id = 1; id < vocab; id += 3) logits.set(at(6 * vocab + id), -HUGE_VAL);
  std::copy(each.begin(), each.end(), rules->as<SamplingRule>());
  for (const int32_t place : {0, 1, 3, 9}) {
    SCOPED_TRACE(fmt::format("vocab {}, place {}", vocab, place));
    std::vector<reference::Before> before(each.size());
    std::vector<std::vector<LogitEdit>> edits(each.size());
    // The newest tokens of some texts are drafts, which no counts have.
    const auto drafts_of = [&](int64_t row) { return std::min<int64_t>(place, row % kMaxDrafts); };
    std::vector<int32_t> lengths;
    for (int64_t row = 0; row < rows; ++row) lengths.push_back(static_cast<int32_t>(prompt + place - drafts_of(row)));
    const PackedBatch packed(lengths);
    HostTensor ids(DType::kI32, {packed.tokens()}), drafts(DType::kI32, {rows * kMaxDrafts}),
        drafted(DType::kI32, {rows, 2});
    drafts.fill(-1);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t slot = rows - 1 - row;  // rows are not in the order of the slots
      for (int64_t i = 0; i < prompt + place; ++i) {
        const auto token = static_cast<int32_t>(static_cast<int64_t>(random() % 40) * 1637 % vocab);
        (i < prompt ? before[at(row)].prompt : before[at(row)].text).push_back(token);
        const int64_t draft = i - lengths[at(row)];
        if (draft < 0)
          ids->as<int32_t>()[packed.offset(at(row)) + i] = token;
        else
          drafts->as<int32_t>()[row * kMaxDrafts + draft] = token;
      }
      drafted.set(at(2 * row), static_cast<double>(row * kMaxDrafts));
      drafted.set(at(2 * row + 1), static_cast<double>(row * kMaxDrafts + drafts_of(row)));
      for (int64_t i = 0; i < max_edits; ++i)  // of different tokens, the last of the vocabulary among them
        edits[at(row)].push_back({static_cast<int32_t>(vocab - 1 - 7 * i), 0.5f + static_cast<float>(i)});
      std::copy(edits[at(row)].begin(), edits[at(row)].end(), edit_words->as<LogitEdit>() + slot * max_edits);
      slots.set(at(row), static_cast<double>(slot));
      keepers.set(at(2 * row), each[at(row)].counts() ? static_cast<double>(slot) : -1);
      keepers.set(at(2 * row + 1), static_cast<double>(prompt));
    }
    draws.fill(place);
    counts.fill(7);  // of sequences before
    out.fill(-5);
    under.run(
        [&](Ops& ops, const Tensor& fed, const Tensor& keep, const Tensor& positions, const Tensor& offsets,
            const Tensor& counted, const Tensor& in, const Tensor& numbers, const Tensor& rule, const Tensor& slot,
            const Tensor& edit, const Tensor& some, const Tensor& spans, const Tensor& mask, const Tensor& to,
            const Tensor& token, const Tensor& log_prob) {
          ops.count_tokens(fed, keep, batch_of(packed, positions, offsets), counted);
          ops.adjust_logits(in, numbers, rule, slot, {counted, edit, some, spans}, mask, to);
          ops.sample(in, to, numbers, rule, token, log_prob);
        },
        ids, keepers, packed.positions, packed.offsets, counts, logits, draws, rules, slots, edit_words, drafts,
        drafted, masks, out, drawn, log_probs);
    for (int64_t row = 0; row < rows; ++row) {
      const float *in = logits->as<float>() + row * vocab, *found = out->as<float>() + row * vocab;
      std::vector<float> expected =
          each[at(row)].adjusts(place)
              ? reference::adjust_logits({in, in + vocab}, each[at(row)], before[at(row)], edits[at(row)], place)
              : std::vector<float>(at(vocab), -5);
      for (int64_t id = 0; id < vocab && each[at(row)].constrained != 0; ++id)
        expected[at(id)] = allowed(id) ? std::max(expected[at(id)], -FLT_MAX) : -HUGE_VALF;
      EXPECT_TRUE(each[at(row)].constrained == 0 || allowed(drawn->as<int32_t>()[row])) << "row " << row;
      const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
      EXPECT_TRUE(std::equal(found, found + vocab, expected.begin(), same)) << "row " << row;
      const float* drawn_from = each[at(row)].adjusts(place) ? expected.data() : in;
      EXPECT_EQ(drawn->as<int32_t>()[row], reference::sample(drawn_from, vocab, each[at(row)], place, place));
    }
  }
}

}  // namespace lfm2::test
