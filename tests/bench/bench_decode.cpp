// Where the time of a decoding step goes: bench_decode [--fp8=experts | --fp8=all] [--fp8-cache] [--length POSITIONS]
// [--steps STEPS] [--steps-only] [--route-apart | --route-together] [--json FILE] SEQUENCES.... The first two come
// first. Runs the steps of a whole LFM2-8B-A1B in bf16, with random weights and without a host between them, on one
// GPU. For each number of sequences it prints the time of a step, and for each operator how long all its calls of a
// step take alone, and how much shorter a step is without them. A run of many steps (3 where nothing is said) shows
// what the GPU does at its power limit. Run by hand on a machine with a GPU.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "chosen_ops.h"
#include "kernels/cuda/common/cuda_check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/fp8_cache.h"
#include "kernels/tensor_memory.h"
#include "random_weights.h"
#include "stage/model/memory_plan.h"
#include "stage/model/stage.h"

namespace {

using namespace lfm2;
using test::ChosenOps, test::Fp8Modules, test::RandomWeights;

constexpr DType kAct = DType::kBf16;
constexpr int64_t kPage = 256;  // positions

class Bench {
 public:
  Bench(Backend& backend, Fp8Modules fp8, bool fp8_cache)
      : backend_(backend),
        stream_(dynamic_cast<CudaStream&>(backend.compute()).native()),
        config_(config_of(fp8_cache)),
        weights_(backend, kAct, fp8),
        stage_(weights_, config_, {0, config_.layers}),
        ops_(backend.ops()) {
    CUDA_CHECK(cudaEventCreate(&start_));
    CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~Bench() {
    static_cast<void>(cudaEventDestroy(start_));
    static_cast<void>(cudaEventDestroy(end_));
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  void write_json(const char* path) { json_.open(path, std::ios::app); }
  void set_routes_apart(bool apart) { ops_.routes_apart = apart; }
  bool steps_only = false;
  int steps = 3;  // of a run

  // One step of `sequences` sequences, each with `length` positions behind it.
  void run(int64_t sequences, int64_t length) {
    Step step(*this, sequences, length);
    ops_.choose("", false);
    ops_.calls.clear();
    step.compute();  // so that what operators read is there, whichever are left out later
    const auto calls = ops_.calls;
    const double whole = step.seconds();
    std::printf("%lld sequences of %lld: %.1f us a step, %.0f tokens/s\n", static_cast<long long>(sequences),
                static_cast<long long>(length), whole * 1e6, static_cast<double>(sequences) / whole);
    note("step", sequences, length, whole, 0);
    if (steps_only) return;
    for (const auto& [name, count] : calls) {
      ops_.choose(name, true);
      const double alone = step.seconds();
      ops_.choose(name, false);
      const double without = step.seconds();
      std::printf("  %-26s %3lld calls %9.1f us alone, %7.2f each; %9.1f us of the step\n", name.c_str(),
                  static_cast<long long>(count), alone * 1e6, alone * 1e6 / static_cast<double>(count),
                  (whole - without) * 1e6);
      note(name, sequences, length, alone, whole - without);
    }
    std::fflush(stdout);
  }

 private:
  static ModelConfig config_of(bool fp8_cache) {
    ModelConfig config = parse_model_config(builtin_model_config("lfm2-8b-a1b"), "lfm2-8b-a1b");
    config.fp8_cache = fp8_cache;
    return config;
  }

  struct Step {
    Step(Bench& owner, int64_t sequences, int64_t length)
        : bench(owner),
          memory(owner.backend_),
          caches(owner.backend_, owner.config_, {0, owner.config_.layers}, kAct,
                 {.slots = sequences, .pages = sequences * (length / kPage + 1), .page_size = kPage}) {
      // What lies in memory that others had may be NaNs, which all choose the same experts.
      for (const LayerCache& layer : caches.layers())
        for (const Tensor& tensor : {layer.key_values.keys, layer.key_values.values, layer.conv.states})
          if (tensor) bench.weights_.fill(tensor);
      for (const LayerCache& layer : caches.layers())
        for (uint8_t* scales : {layer.key_values.key_scales, layer.key_values.value_scales})
          if (scales != nullptr)
            CUDA_CHECK(cudaMemset(scales, kScaleBias - 9,
                                  static_cast<size_t>(layer.key_values.keys.numel() / bench.config_.head_dim)));
      const int64_t pages = length / kPage + 1;
      std::vector<int32_t> each, positions, offsets = {0}, table, states, draws;
      for (int32_t s = 0; s < static_cast<int32_t>(sequences); ++s) {
        each.push_back(s);
        positions.push_back(static_cast<int32_t>(length));
        offsets.push_back(s + 1);
        for (int64_t p = 0; p < pages; ++p) table.push_back(static_cast<int32_t>(s * pages + p));
        states.insert(states.end(), {2 * s, 2 * s + 1});
        draws.insert(draws.end(), {s, 0});
      }
      ids = integers(each, {sequences});
      batch = {.positions = integers(positions, {sequences}),
               .offsets = integers(offsets, {sequences + 1}),
               .tokens = sequences,
               .sequences = sequences,
               .max_length = (length / 1024 + 1) * 1024,
               .singles = sequences,
               .sequence_of = integers(each, {sequences}),
               .page_table = integers(table, {sequences, pages}),
               .states = integers(states, {sequences, 2})};
      draw_rows = integers(each, {sequences});
      draw_places = integers(draws, {sequences, 2});
      std::vector<int32_t> words(static_cast<size_t>(sequences * kRuleWords));
      const SamplingRule rule;
      for (int64_t row = 0; row < sequences; ++row) std::memcpy(words.data() + row * kRuleWords, &rule, sizeof rule);
      rules = integers(words, {sequences, kRuleWords});
      residual = memory.allocate(kAct, {sequences, bench.config_.hidden});
      logits = memory.allocate(DType::kF32, {std::min(sequences, kHeadRows), bench.config_.vocab});
      drawn = memory.allocate(DType::kI32, {sequences});
      log_probs = memory.allocate(DType::kF32, {sequences});
      const StageMemory cost = stage_memory(bench.config_, {0, bench.config_.layers}, kAct, kAct, sequences, sequences);
      scratch = Scratch(bench.backend_.allocate(cost.scratch_bytes));
      const int64_t top_k = bench.config_.router().top_k, experts = bench.config_.experts;
      bench.ops_.set_routing({.ids = memory.allocate(DType::kI32, {sequences, top_k}),
                              .weights = memory.allocate(DType::kF32, {sequences, top_k}),
                              .sources = memory.allocate(DType::kI32, {sequences * top_k}),
                              .rows = memory.allocate(DType::kI32, {sequences, top_k}),
                              .expert_offsets = memory.allocate(DType::kI32, {experts + 1})});
    }
    Tensor integers(const std::vector<int32_t>& values, std::initializer_list<int64_t> dims) {
      const Tensor tensor = memory.allocate(DType::kI32, dims);
      bench.backend_.upload(tensor, 0, DType::kI32, values.data(), tensor.numel());
      return tensor;
    }
    void enqueue() {
      Ops& ops = bench.ops_;
      ops.insert_drawn(ids, drawn);
      bench.stage_.embed(ops, ids, residual);
      bench.stage_.forward({.ops = ops, .scratch = scratch, .residual = residual, .batch = batch, .caches = &caches});
      for (int64_t first = 0; first < batch.tokens; first += kHeadRows) {
        const int64_t count = std::min(kHeadRows, batch.tokens - first);
        const Tensor own = logits.rows(0, count);
        bench.stage_.head(ops, residual, draw_rows.rows(first, count), scratch, own);
        ops.sample(own, {}, draw_places.rows(first, count), rules.rows(first, count), drawn.rows(first, count),
                   log_probs.rows(first, count));
      }
    }
    void compute() {
      bench.backend_.compute().submit([this] { enqueue(); });
      bench.backend_.compute().drain();
    }
    // The median of several steps, replayed from a recording one behind the other.
    double seconds() {
      compute();
      const auto recording = bench.backend_.record([this] { enqueue(); });
      constexpr int kRuns = 7;
      std::vector<double> times;
      for (int run = -1; run < kRuns; ++run) {  // the first one warms up
        bench.backend_.compute().submit([&] {
          CUDA_CHECK(cudaEventRecord(bench.start_, bench.stream_));
          for (int i = 0; i < bench.steps; ++i) recording->replay();
          CUDA_CHECK(cudaEventRecord(bench.end_, bench.stream_));
        });
        CUDA_CHECK(cudaEventSynchronize(bench.end_));
        float milliseconds = 0;
        CUDA_CHECK(cudaEventElapsedTime(&milliseconds, bench.start_, bench.end_));
        if (run >= 0) times.push_back(static_cast<double>(milliseconds) * 1e-3 / bench.steps);
      }
      std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
      return times[kRuns / 2];
    }

    Bench& bench;
    TensorMemory memory;
    Caches caches;
    Tensor ids, draw_rows, draw_places, rules, residual, logits, drawn, log_probs;
    Batch batch;
    Scratch scratch;
  };

  void note(const std::string& what, int64_t sequences, int64_t length, double alone, double share) {
    if (!json_.is_open()) return;
    json_ << fmt::format("{{\"bench\": \"{} {} x {}\", \"seconds\": {:.9f}", what, sequences, length, alone);
    if (share != 0) json_ << fmt::format(", \"of_step\": {:.9f}", share);
    json_ << "}\n";
  }

  Backend& backend_;
  cudaStream_t stream_;
  const ModelConfig config_;
  RandomWeights weights_;
  Stage stage_;
  ChosenOps ops_;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
  std::ofstream json_;
};

}  // namespace

int main(int argc, char** argv) {
  if (cuda_device_count() == 0) {
    std::puts("no GPU");
    return 77;
  }
  const auto backend = make_cuda_backend(0);
  std::printf("%s\n", backend->description().c_str());
  const std::string first = argc > 1 ? argv[1] : "";
  const Fp8Modules fp8 = first == "--fp8=experts" ? Fp8Modules::kExperts
                         : first == "--fp8=all"   ? Fp8Modules::kAll
                                                  : Fp8Modules::kNone;
  int i = fp8 == Fp8Modules::kNone ? 1 : 2;
  const bool fp8_cache = i < argc && argv[i] == std::string("--fp8-cache");
  Bench bench(*backend, fp8, fp8_cache);
  int64_t length = 64;
  for (i += fp8_cache ? 1 : 0; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--length" && i + 1 < argc)
      length = std::stoll(argv[++i]);
    else if (argument == "--json" && i + 1 < argc)
      bench.write_json(argv[++i]);
    else if (argument == "--steps" && i + 1 < argc)
      bench.steps = std::stoi(argv[++i]);
    else if (argument == "--route-apart" || argument == "--route-together")
      bench.set_routes_apart(argument == "--route-apart");
    else if (argument == "--steps-only")
      bench.steps_only = true;
    else
      bench.run(std::stoll(argument), length);
  }
  return 0;
}
