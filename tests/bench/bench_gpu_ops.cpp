// Speed of the CUDA operators at the shapes of LFM2-8B-A1B, beside cuBLAS' bf16 8192^3 in the same run. bench_gpu_ops
// [FILE.jsonl]: prints a line for each shape, and writes one of JSON to the file. Run by hand on a machine with a GPU.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>

#include "gpu_bench.h"

namespace {

using namespace lfm2;

// The copy bandwidth of the device in bytes read and written, for sizes far beyond the cache.
void copy(Bench& bench) {
  const int64_t count = int64_t{1} << 30;
  const Tensor from = bench.random(DType::kBf16, {count}), to = bench.empty(DType::kBf16, {count});
  auto& stream = bench.backend().compute();
  const double seconds = bench.seconds([&](int) { bench.backend().copy(stream, to.data, from.data, from.bytes()); });
  bench.set_copy(2.0 * static_cast<double>(from.bytes()) / seconds);
  bench.print("device copy 2 GiB", seconds, 0, 2.0 * static_cast<double>(from.bytes()));
  bench.forget();
}

double product(int64_t m, int64_t n, int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}
double bytes_of(std::initializer_list<Tensor> tensors) {
  double bytes = 0;
  for (const Tensor& tensor : tensors) bytes += static_cast<double>(tensor.bytes());
  return bytes;
}

void dense(Bench& bench, int64_t m, int64_t n, int64_t k, DType act, DType weight) {
  constexpr int kCopies = 4;  // copies of the weights, used in turn, so that they are not in the cache
  std::vector<Tensor> w;
  for (int i = 0; i < kCopies; ++i) w.push_back(bench.random(weight, {n, k}));
  const Tensor a = bench.random(act, {m, k}), out = bench.empty(act, {m, n});
  const double seconds =
      bench.seconds([&](int i) { bench.ops().matmul(a, w[static_cast<size_t>(i % kCopies)], {}, out, Write::kStore); });
  const double flops = product(m, n, k);
  if (m == 8192 && n == 8192) bench.set_peak(flops / seconds);
  bench.print(fmt::format("dense {}x{} m {} n {} k {}", name(act), name(weight), m, n, k), seconds, flops, 0);
  bench.forget();
}

// With `swiglu`, n counts gate and up rows, and the output has n / 2 columns.
void grouped(Bench& bench, int64_t each, int64_t n, int64_t k, DType act, DType weight, bool swiglu = false) {
  const int64_t experts = 32, m = experts * each;
  const Tensor a = bench.random(act, {m, k}), w = bench.random(weight, {experts, n, k}),
               out = bench.empty(act, {m, swiglu ? n / 2 : n});
  // Mildly uneven, as real routing is: even experts get a fifth more rows, odd ones a fifth less.
  std::vector<int32_t> offsets = {0};
  for (int64_t e = 0; e < experts; ++e)
    offsets.push_back(offsets.back() + static_cast<int32_t>(e % 2 == 0 ? each + each / 5 : each - each / 5));
  const Tensor device_offsets = bench.integers(offsets);
  const double seconds = bench.seconds([&](int) {
    if (swiglu)
      bench.ops().grouped_swiglu(a, w, device_offsets, out);
    else
      bench.ops().grouped_matmul(a, w, device_offsets, out);
  });
  bench.print(
      fmt::format("grouped{} {}x{} rows {} n {} k {}", swiglu ? "_swiglu" : "", name(act), name(weight), each, n, k),
      seconds, product(m, n, k), 0);
  bench.forget();
}

Batch batch_of(Bench& bench, int64_t samples, int64_t length) {
  std::vector<int32_t> positions, offsets = {0};
  for (int64_t s = 0; s < samples; ++s) {
    for (int64_t i = 0; i < length; ++i) positions.push_back(static_cast<int32_t>(i));
    offsets.push_back(static_cast<int32_t>(positions.size()));
  }
  return {bench.integers(positions), bench.integers(offsets), samples * length, samples, length};
}

constexpr AttentionShape kLfm2{32, 8, 64}, kLfm3{16, 4, 128, false, 0, true}, kLfm3Window{16, 4, 128, false, 256, true};
// What follows the name of a line of such a shape.
std::string suffix(AttentionShape shape) {
  if (shape.head_dim == kLfm2.head_dim) return "";
  return fmt::format(", heads of {}, window {}", shape.head_dim, shape.window);
}

void attention(Bench& bench, int64_t samples, int64_t length, DType act, AttentionShape shape = kLfm2) {
  const Batch batch = batch_of(bench, samples, length);
  const Tensor qkv = bench.random(act, {batch.tokens, shape.qkv_columns()}),
               out = bench.empty(act, {batch.tokens, shape.heads * shape.head_dim});
  const double seconds = bench.seconds([&](int) { bench.ops().attention(qkv, shape, batch, out); });
  const int64_t window = shape.window == 0 ? length : std::min(shape.window, length);
  const int64_t pairs = window * (window + 1) / 2 + (length - window) * window;
  const double flops = 4.0 * static_cast<double>(samples * pairs * shape.heads * shape.head_dim);
  bench.print(fmt::format("attention {} {} x {}{}", name(act), samples, length, suffix(shape)), seconds, flops, 0);
  bench.forget();
}

void rows(Bench& bench, int64_t tokens, DType act) {
  const int64_t hidden = 2048, top_k = 4, experts = 32;
  const AttentionShape shape{32, 8, 64};
  const Batch batch = batch_of(bench, tokens / 32, 32);
  const Tensor x = bench.random(act, {tokens, hidden}), y = bench.random(act, {tokens * top_k, hidden}),
               bcz = bench.random(act, {tokens, 3 * hidden}), weight = bench.random(act, {hidden}),
               taps = bench.random(act, {hidden, 3}), head = bench.random(act, {64}),
               qkv = bench.random(act, {tokens, shape.qkv_columns()}),
               logits = bench.random(DType::kF32, {tokens, experts}),
               gate = bench.random(DType::kBf16, {experts, hidden}), normed = bench.empty(act, {tokens, hidden});
  const Routing routing{bench.empty(DType::kI32, {tokens, top_k}), bench.empty(DType::kF32, {tokens, top_k}),
                        bench.empty(DType::kI32, {tokens * top_k}), bench.empty(DType::kI32, {tokens, top_k}),
                        bench.empty(DType::kI32, {experts + 1})};
  Ops& ops = bench.ops();
  const auto line = [&](const char* what, double bytes, const std::function<void()>& work) {
    bench.print(fmt::format("{} {} tokens {}", what, name(act), tokens), bench.seconds([&](int) { work(); }), 0, bytes);
  };
  line("rms_norm", 2 * bytes_of({x}), [&] { ops.rms_norm(x, weight, 1e-5f, x); });
  line("short_conv", bytes_of({bcz, x}), [&] { ops.short_conv(bcz, taps, {}, batch, x); });
  line("qk_norm_rope", 2 * bytes_of({qkv}), [&] { ops.qk_norm_rope(qkv, head, head, 1e-5f, {1e6f}, shape, batch); });
  line("norm_route", bytes_of({x, normed, y}), [&] {
    ops.norm_route(x, weight, 1e-5f, gate, {}, {top_k, true, 1.0f}, normed, routing, y);
  });
  line("route", bytes_of({logits}), [&] { ops.route(logits, {}, {top_k, true, 1.0f}, routing); });
  line("group_by_expert", bytes_of({routing.ids, routing.rows, routing.sources}),
       [&] { ops.group_by_expert(routing); });
  line("gather_rows", 2 * bytes_of({y}), [&] { ops.gather_rows(x, routing.sources, y); });
  line("combine_experts", bytes_of({y, x, x}), [&] { ops.combine_experts(y, routing, x); });
  line("combine_experts_norm", bytes_of({y, x, x, normed}),
       [&] { ops.combine_experts_norm(y, routing, x, weight, 1e-5f, normed); });
  bench.forget();
}

// A step of generation: the last `count` tokens of each sequence.
struct GenerationStep {
  static constexpr int64_t kPage = 256;
  AttentionShape shape;
  Batch batch;
  KeyValueCache cache;
  Tensor qkv, out;
  double cache_bytes;  // of the keys and values that belong to the sequences

  GenerationStep(Bench& bench, const std::vector<int64_t>& lengths, DType act, int64_t count = 1,
                 AttentionShape of_model = kLfm2)
      : shape(of_model) {
    const auto sequences = static_cast<int64_t>(lengths.size());
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end()), width = (longest + kPage - 1) / kPage;
    int64_t pages = 0, keys = 0;
    std::vector<int32_t> positions, offsets = {0}, sequence_of, table, states;
    for (int32_t sequence = 0; sequence < static_cast<int32_t>(sequences); ++sequence) {
      const int64_t length = lengths[static_cast<size_t>(sequence)];
      for (int64_t i = length - count; i < length; ++i) {
        positions.push_back(static_cast<int32_t>(i));
        sequence_of.push_back(sequence);
      }
      offsets.push_back(static_cast<int32_t>(positions.size()));
      for (int64_t p = 0; p < width; ++p) table.push_back(static_cast<int32_t>(p * kPage < length ? pages++ : 0));
      states.insert(states.end(), {2 * sequence, 2 * sequence + 1});
      keys += shape.window == 0 ? length : std::min(length, shape.window + count - 1);
    }
    const int64_t tokens = sequences * count;
    batch = {.positions = bench.integers(positions),
             .offsets = bench.integers(offsets),
             .tokens = tokens,
             .sequences = sequences,
             .max_length = longest,
             .singles = count == 1 ? sequences : 0,
             .sequence_of = bench.integers(sequence_of),
             .page_table = bench.integers(table).reshape({sequences, width}),
             .states = bench.integers(states).reshape({sequences, 2})};
    cache = {bench.random(act, {pages, kPage, shape.kv_heads, shape.head_dim}),
             bench.random(act, {pages, kPage, shape.kv_heads, shape.head_dim})};
    qkv = bench.random(act, {tokens, shape.qkv_columns()});
    out = bench.empty(act, {tokens, shape.heads * shape.head_dim});
    cache_bytes =
        2.0 * static_cast<double>(keys * shape.kv_heads * shape.head_dim) * static_cast<double>(size_bytes(act));
  }
  void attend(Ops& ops) const { ops.cached_attention(qkv, shape, batch, cache, out); }
};

// A chunk of `count` tokens of each prompt, which has `length` tokens up to the chunk's end.
void chunks(Bench& bench, int64_t prompts, int64_t count, int64_t length, DType act) {
  const GenerationStep step(bench, std::vector<int64_t>(static_cast<size_t>(prompts), length), act, count);
  const double seconds = bench.seconds([&](int) { step.attend(bench.ops()); });
  const double pairs = static_cast<double>(prompts * count) *
                       (static_cast<double>(length - count) + 0.5 * static_cast<double>(count + 1));
  bench.print(fmt::format("cached_attention {} {} x {} behind {}", name(act), prompts, count, length - count), seconds,
              4.0 * pairs * static_cast<double>(step.shape.heads * step.shape.head_dim), 0);
  bench.forget();
}

void decode(Bench& bench, int64_t sequences, int64_t length, DType act) {
  const int64_t hidden = 2048;
  const GenerationStep step(bench, std::vector<int64_t>(static_cast<size_t>(sequences), length), act);
  const Tensor bcz = bench.random(act, {sequences, 3 * hidden}), taps = bench.random(act, {hidden, 3}),
               states_of = bench.random(DType::kF32, {2 * sequences, 2, hidden}), head = bench.random(act, {64});
  Ops& ops = bench.ops();
  const auto line = [&](const char* what, double bytes, const std::function<void()>& work) {
    bench.print(fmt::format("{} {} {} x {}", what, name(act), sequences, length), bench.seconds([&](int) { work(); }),
                0, bytes);
  };
  line("append_keys_values", 2.0 / 3 * bytes_of({step.qkv}),
       [&] { ops.append_keys_values(step.qkv, step.shape, step.batch, step.cache); });
  line("qk_norm_rope_append", (2 + 1.0 / 3) * bytes_of({step.qkv}),
       [&] { ops.qk_norm_rope_append(step.qkv, head, head, 1e-5f, {1e6f}, step.shape, step.batch, step.cache); });
  line("cached_attention", step.cache_bytes, [&] { step.attend(ops); });
  line("cached_short_conv", bytes_of({bcz, step.out, states_of}),
       [&] { ops.cached_short_conv(bcz, taps, {}, step.batch, {states_of}, step.out); });
  const Tensor in_proj = bench.random(act, {3 * hidden, hidden}), x = bench.random(act, {sequences, hidden});
  line("project_short_conv", bytes_of({in_proj, x, step.out, states_of}),
       [&] { ops.project_short_conv(x, in_proj, {}, taps, {}, step.batch, {states_of}, bcz, step.out); });
  bench.forget();
}

// The operators around skinny products, at a step of generation of few tokens. Their weights must come from
// memory: those that every token reads have copies, and there are several sets of tokens, which choose other experts.
class FewTokens {
 public:
  FewTokens(Bench& bench, int64_t tokens)
      : bench_(bench),
        tokens_(tokens),
        step_(bench, std::vector<int64_t>(static_cast<size_t>(tokens), 1024), kAct),
        x_(bench.random(kAct, {kSets, tokens, kHidden})),
        norm_(bench.empty(kAct, {kHidden})),
        normed_(bench.empty(kAct, {tokens, kHidden})),
        sorted_(bench.empty(kAct, {tokens * kTopK, kHidden})) {
    // So small that the router's probabilities differ: many would be 1, of which it chooses the first.
    const std::vector<float> small(static_cast<size_t>(kHidden), 0.02f);
    bench.backend().upload(norm_, 0, DType::kF32, small.data(), kHidden);
  }

  void dense() {
    const Tensor w = bench_.random(kAct, {kSets, 3 * kHidden, kHidden}), taps = bench_.random(kAct, {kHidden, 3}),
                 bcz = bench_.empty(kAct, {tokens_, 3 * kHidden}),
                 states = bench_.random(DType::kF32, {2 * tokens_, 2, kHidden});
    const auto qkv_rows = [&](int64_t set) { return w.at(set).rows(0, step_.shape.qkv_columns()); };
    line("norm_matmul", bytes_of({qkv_rows(0), x_.at(0), step_.qkv}), [&](int64_t set) {
      bench_.ops().norm_matmul(x_.at(set), norm_, 1e-5f, qkv_rows(set), {}, normed_, step_.qkv);
    });
    line("norm_project_short_conv", bytes_of({w.at(0), x_.at(0), step_.out, states}), [&](int64_t set) {
      bench_.ops().norm_project_short_conv(x_.at(set), norm_, 1e-5f, w.at(set), {}, taps, {}, step_.batch, {states},
                                           normed_, bcz, step_.out);
    });
  }

  void experts() {
    const Tensor gate = bench_.random(kAct, {kExperts, kHidden}),
                 up = bench_.random(kAct, {kExperts, 2 * kFfn, kHidden}),
                 down = bench_.random(kAct, {kExperts, kHidden, kFfn}),
                 inner = bench_.empty(kAct, {tokens_ * kTopK, kFfn});
    std::vector<Routing> routings;
    for (int64_t set = 0; set < kSets; ++set)
      routings.push_back({bench_.empty(DType::kI32, {tokens_, kTopK}), bench_.empty(DType::kF32, {tokens_, kTopK}),
                          bench_.empty(DType::kI32, {tokens_ * kTopK}), bench_.empty(DType::kI32, {tokens_, kTopK}),
                          bench_.empty(DType::kI32, {kExperts + 1})});
    const auto route = [&](int64_t set) {
      bench_.ops().norm_route_swiglu(x_.at(set), norm_, 1e-5f, gate, {}, {kTopK, true, 1.0f}, up, normed_,
                                     routings[static_cast<size_t>(set)], sorted_, inner);
    };
    for (int64_t set = 0; set < kSets; ++set) route(set);
    const double used = experts_used(routings);
    line("norm_route_swiglu", used * bytes_of({up.at(0)}) + bytes_of({gate, x_.at(0), inner}), route);
    line("matmul_combine_experts", used * bytes_of({down.at(0)}) + bytes_of({inner, step_.out, step_.out}),
         [&](int64_t set) {
           bench_.ops().matmul_combine_experts(inner, down, routings[static_cast<size_t>(set)], sorted_, step_.out);
         });
  }

 private:
  static constexpr DType kAct = DType::kBf16;
  static constexpr int64_t kSets = 8, kHidden = 2048, kFfn = 1792, kTopK = 4, kExperts = 32;

  // The number of experts that a set of tokens chooses, in the mean.
  double experts_used(const std::vector<Routing>& routings) {
    int64_t used = 0;
    for (const Routing& routing : routings) {
      std::vector<int32_t> ids(static_cast<size_t>(routing.ids.numel()));
      bench_.backend().copy_to_host(ids.data(), routing.ids);
      bench_.backend().compute().drain();
      used += static_cast<int64_t>(std::set<int32_t>(ids.begin(), ids.end()).size());
    }
    return static_cast<double>(used) / static_cast<double>(routings.size());
  }
  void line(const char* what, double bytes, const std::function<void(int64_t)>& work) {
    bench_.print(fmt::format("{} {} tokens {}", what, name(kAct), tokens_),
                 bench_.seconds([&](int call) { work(call % kSets); }), 0, bytes);
  }

  Bench& bench_;
  int64_t tokens_;
  GenerationStep step_;
  Tensor x_, norm_, normed_, sorted_;
};

void few_tokens(Bench& bench, int64_t tokens) {
  FewTokens lines(bench, tokens);
  lines.dense();
  lines.experts();
  bench.forget();
}

// What LFM3 has besides: wide heads, windows, gates, norms before the sums, seven taps.
void decode_lfm3(Bench& bench, int64_t sequences, int64_t length) {
  const int64_t hidden = 2048;
  const DType act = DType::kBf16;
  const std::vector<int64_t> lengths(static_cast<size_t>(sequences), length);
  Ops& ops = bench.ops();
  const auto line = [&](const std::string& what, double bytes, const std::function<void()>& work) {
    bench.print(fmt::format("{} {} {} x {}, LFM3", what, name(act), sequences, length),
                bench.seconds([&](int) { work(); }), 0, bytes);
  };
  for (const AttentionShape shape : {kLfm3, kLfm3Window}) {
    const GenerationStep step(bench, lengths, act, 1, shape);
    line(fmt::format("cached_attention, window {}", shape.window), step.cache_bytes, [&] { step.attend(ops); });
    bench.forget();
  }
  const GenerationStep step(bench, lengths, act, 1, kLfm3Window);
  const Tensor bcz = bench.random(act, {sequences, 3 * hidden}), taps = bench.random(act, {hidden, 7}),
               states_of = bench.random(DType::kF32, {2 * sequences, 6, hidden}),
               in_proj = bench.random(act, {3 * hidden, hidden}), x = bench.random(act, {sequences, hidden}),
               residual = bench.random(act, {sequences, hidden}), weight = bench.random(act, {hidden});
  line("add_norm", bytes_of({x, residual, residual, step.out}),
       [&] { ops.add_norm(x, weight, 1e-5f, residual, weight, 1e-5f, step.out); });
  line("gate_heads", 2 * bytes_of({step.out}), [&] { ops.gate_heads(step.qkv, step.shape, step.out); });
  line("cached_short_conv", bytes_of({bcz, step.out, states_of}),
       [&] { ops.cached_short_conv(bcz, taps, {}, step.batch, {states_of}, step.out); });
  line("project_short_conv", bytes_of({in_proj, x, step.out, states_of}),
       [&] { ops.project_short_conv(x, in_proj, {}, taps, {}, step.batch, {states_of}, bcz, step.out); });
  bench.forget();
}

void rows_lfm3(Bench& bench, int64_t tokens) {
  const int64_t hidden = 2048;
  const DType act = DType::kBf16;
  const Batch batch = batch_of(bench, 1, tokens);
  const Tensor x = bench.random(act, {tokens, hidden}), residual = bench.random(act, {tokens, hidden}),
               normed = bench.empty(act, {tokens, hidden}), bcz = bench.random(act, {tokens, 3 * hidden}),
               weight = bench.random(act, {hidden}), taps = bench.random(act, {hidden, 7});
  Ops& ops = bench.ops();
  const auto line = [&](const char* what, double bytes, const std::function<void()>& work) {
    bench.print(fmt::format("{} {} tokens {}, LFM3", what, name(act), tokens), bench.seconds([&](int) { work(); }), 0,
                bytes);
  };
  line("add_norm", bytes_of({x, residual, residual, normed}),
       [&] { ops.add_norm(x, weight, 1e-5f, residual, weight, 1e-5f, normed); });
  line("short_conv", bytes_of({bcz, x}), [&] { ops.short_conv(bcz, taps, {}, batch, x); });
  bench.forget();
}

// One long sequence in the middle of many short ones.
void decode_uneven(Bench& bench, int64_t sequences, int64_t length, int64_t longest, DType act) {
  std::vector<int64_t> lengths(static_cast<size_t>(sequences), length);
  lengths[lengths.size() / 2] = longest;
  const GenerationStep step(bench, lengths, act);
  bench.print(fmt::format("cached_attention {} {} x {}, one {}", name(act), sequences, length, longest),
              bench.seconds([&](int) { step.attend(bench.ops()); }), 0, step.cache_bytes);
  bench.forget();
}

void sample(Bench& bench, int64_t rows, const SamplingRule& rule) {
  const Tensor logits = bench.random(DType::kF32, {rows, 65536}), ids = bench.empty(DType::kI32, {rows}),
               log_probs = bench.empty(DType::kF32, {rows});
  std::vector<int32_t> draws;
  for (int32_t row = 0; row < static_cast<int32_t>(rows); ++row) draws.insert(draws.end(), {row, 0});
  const Tensor device_draws = bench.integers(draws).reshape({rows, 2});
  std::vector<int32_t> words(static_cast<size_t>(rows * kRuleWords));
  for (int64_t row = 0; row < rows; ++row) std::memcpy(words.data() + row * kRuleWords, &rule, sizeof rule);
  const Tensor rules = bench.integers(words).reshape({rows, kRuleWords});
  const double seconds =
      bench.seconds([&](int) { bench.ops().sample(logits, {}, device_draws, rules, ids, log_probs); });
  bench.print(fmt::format("sample rows {} top_k {} top_p {}", rows, rule.top_k, rule.top_p), seconds, 0,
              bytes_of({logits}));
  bench.forget();
}

void top(Bench& bench, int64_t rows, int64_t k) {
  const Tensor logits = bench.random(DType::kF32, {rows, 65536}), ids = bench.empty(DType::kI32, {rows, k}),
               log_probs = bench.empty(DType::kF32, {rows, k});
  const double seconds = bench.seconds([&](int) { bench.ops().top_log_probs(logits, ids, log_probs); });
  bench.print(fmt::format("top_log_probs rows {} k {}", rows, k), seconds, 0, bytes_of({logits}));
  bench.forget();
}

void target(Bench& bench, int64_t rows) {
  const Tensor logits = bench.random(DType::kF32, {rows, 65536}), is_greedy = bench.empty(DType::kI32, {rows}),
               log_probs = bench.empty(DType::kF32, {rows});
  const Tensor targets = bench.integers(std::vector<int32_t>(static_cast<size_t>(rows), 40000));
  const double seconds =
      bench.seconds([&](int) { bench.ops().target_log_probs(logits, targets, log_probs, is_greedy); });
  bench.print(fmt::format("target_log_probs rows {}", rows), seconds, 0, bytes_of({logits}));
  bench.forget();
}

}  // namespace

int main(int argc, char** argv) {
  const DType f32 = DType::kF32, bf16 = DType::kBf16, f16 = DType::kF16;
  if (cuda_device_count() == 0) {
    std::puts("no GPU");
    return 77;
  }
  Bench bench;
  if (argc > 1) bench.write_json(argv[1]);
  std::printf("%s\n", bench.backend().description().c_str());
  copy(bench);
  dense(bench, 8192, 8192, 8192, bf16, bf16);
  for (const int64_t m : {256, 1024, 2048, 4096})
    for (const int64_t n : {6144, 2048, 3072}) dense(bench, m, n, 2048, bf16, bf16);
  dense(bench, 64, 65536, 2048, bf16, bf16);
  for (const int64_t m : {1024, 2048})
    for (const int64_t n : {6144, 2048, 3072}) dense(bench, m, n, 2048, f32, f32);
  dense(bench, 2048, 6144, 2048, f32, bf16);
  for (const int64_t each : {1, 8, 64, 128, 256, 512, 1024}) {
    grouped(bench, each, 3584, 2048, bf16, bf16, true);
    grouped(bench, each, 2048, 1792, bf16, bf16);
  }
  grouped(bench, 256, 3584, 2048, f16, f16, true);
  for (const int64_t each : {64, 256, 1024}) {
    grouped(bench, each, 3584, 2048, f32, f32, true);
    grouped(bench, each, 2048, 1792, f32, f32);
  }
  grouped(bench, 256, 3584, 2048, f32, bf16, true);
  for (const DType act : {bf16, f32}) {
    attention(bench, 64, 32, act);
    attention(bench, 1, 4096, act);
    attention(bench, 1, 32768, act);
  }
  attention(bench, 64, 2048, bf16);
  attention(bench, 32, 8192, bf16);
  attention(bench, 1, 65536, bf16);
  chunks(bench, 1, 8192, 65536, bf16);
  chunks(bench, 16, 512, 4512, bf16);
  chunks(bench, 8, 20, 1020, bf16);
  rows(bench, 2048, bf16);
  rows(bench, 16384, bf16);
  rows(bench, 2048, f32);
  for (const int64_t k : {1, 8, 64}) top(bench, 256, k);
  target(bench, 256);
  for (const DType act : {bf16, f32}) {
    decode(bench, 256, 1024, act);
    decode(bench, 8, 16384, act);
    decode_uneven(bench, 256, 200, 16000, act);
  }
  for (const AttentionShape shape : {kLfm3, kLfm3Window})
    for (const int64_t length : {4096, 32768}) attention(bench, 1, length, bf16, shape);
  rows_lfm3(bench, 16384);
  decode_lfm3(bench, 1, 16384);
  decode_lfm3(bench, 8, 16384);
  decode_lfm3(bench, 256, 1024);
  for (const int64_t tokens : {1, 8}) few_tokens(bench, tokens);
  sample(bench, 256, {1.0f, 0, 1.0f, 1});
  sample(bench, 256, {1.0f, 50, 0.9f, 1});
  return 0;
}
