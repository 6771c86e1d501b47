// Speed of the CPU matrix products at the shapes of LFM2-8B-A1B, beside OpenBLAS in the same run. Run by hand;
// LFM2_BENCH_THREADS sets the threads, LFM2_BENCH_SIMD the vector kernels (amx, avx512, avx2, portable).
#include <benchmark/benchmark.h>
#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/growing_buffer.h"

namespace {

using namespace lfm2;

int thread_count() {
  const char* threads = std::getenv("LFM2_BENCH_THREADS");
  return threads != nullptr ? std::max(1, std::atoi(threads)) : static_cast<int>(std::thread::hardware_concurrency());
}

const Simd& chosen_simd() {
  const char* wanted = std::getenv("LFM2_BENCH_SIMD");
  for (const Simd* simd : available_simd())
    if (wanted == nullptr || std::string(wanted) == simd->name) return *simd;
  throw Error(ExitCode::kUsage, std::string("LFM2_BENCH_SIMD: this machine cannot run ") + wanted);
}

struct Operands {
  Operands(int64_t rows, int64_t experts, int64_t n, int64_t k, DType weight)
      : a_memory(allocate_aligned(static_cast<size_t>(rows * k) * 4)),
        w_memory(allocate_aligned(static_cast<size_t>(experts * n * k) * size_bytes(weight))),
        out_memory(allocate_aligned(static_cast<size_t>(rows * n) * 4)),
        a(a_memory.data(), DType::kF32, {rows, k}),
        w(w_memory.data(), weight, {experts, n, k}),
        out(out_memory.data(), DType::kF32, {rows, n}) {
    std::vector<float> values(static_cast<size_t>(std::max(n, rows) * k));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251) * 0x1p-8f - 0.5f;
    convert(DType::kF32, values.data(), DType::kF32, a.data, static_cast<size_t>(rows * k));
    for (int64_t e = 0; e < experts; ++e)
      convert(DType::kF32, values.data(), weight, w.at(e).data, static_cast<size_t>(n * k));
  }
  Buffer a_memory, w_memory, out_memory;
  Tensor a, w, out;
};

double seconds_of(auto&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The project's products and BLAS's take turns, so that both see the same machine. share_of_blas compares their fastest
// times.
void measure(benchmark::State& state, double flops, double weight_bytes, auto&& ours, auto&& blas, bool compare) {
  ours();
  double best = 1e9, best_blas = 1e9;
  for (auto _ : state) {
    const double seconds = seconds_of(ours);
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
    if (compare) best_blas = std::min(best_blas, seconds_of(blas));
  }
  state.counters["GFLOP/s"] = flops / best * 1e-9;
  state.counters["weight_GB/s"] = weight_bytes / best * 1e-9;
  if (compare) state.counters["share_of_blas"] = best_blas / best;
}

void sgemm(const float* a, const float* w, float* out, int64_t m, int64_t n, int64_t k) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k),
              1.0f, a, static_cast<int>(k), w, static_cast<int>(k), 0.0f, out, static_cast<int>(n));
}

void matmul(benchmark::State& state, CpuOps& ops, DType weight) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const Operands x(m, 1, n, k, weight);
  measure(
      state, 2.0 * static_cast<double>(m * n * k), static_cast<double>(x.w.bytes()),
      [&] { ops.matmul(x.a, x.w.at(0), {}, x.out, Write::kStore); },
      [&] { sgemm(x.a.as<float>(), x.w.as<float>(), x.out.as<float>(), m, n, k); }, weight == DType::kF32);
}

// 32 experts, of which each of `m` tokens uses 4, evenly, as a fair router would choose.
void grouped_matmul(benchmark::State& state, CpuOps& ops, DType weight) {
  const int64_t experts = 32, rows = 4 * state.range(0), n = state.range(1), k = state.range(2);
  const Operands x(rows, experts, n, k, weight);
  std::vector<int32_t> offsets;
  for (int64_t e = 0; e <= experts; ++e) offsets.push_back(static_cast<int32_t>(rows * e / experts));
  const Tensor expert_offsets(offsets.data(), DType::kI32, {experts + 1});
  const auto blas = [&] {
    for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
      const int64_t first = offsets[e], count = offsets[e + 1] - first;
      if (count == 0) continue;
      sgemm(x.a.rows(first, count).as<float>(), x.w.at(static_cast<int64_t>(e)).as<float>(),
            x.out.rows(first, count).as<float>(), count, n, k);
    }
  };
  const double touched = static_cast<double>(std::min(experts, rows)) / static_cast<double>(experts);
  measure(
      state, 2.0 * static_cast<double>(rows * n * k), static_cast<double>(x.w.bytes()) * touched,
      [&] { ops.grouped_matmul(x.a, x.w, expert_offsets, x.out); }, blas, weight == DType::kF32);
}

}  // namespace

int main(int argc, char** argv) {
  const Simd& simd = chosen_simd();
  ThreadPool pool(thread_count());
  CpuOps ops(pool, simd);
  openblas_set_num_threads(thread_count());
  for (const DType weight : {DType::kF32, DType::kBf16}) {
    const std::string type(name(weight));
    auto* dense = benchmark::RegisterBenchmark(("matmul_" + type).c_str(), matmul, std::ref(ops), weight);
    auto* grouped = benchmark::RegisterBenchmark(("grouped_" + type).c_str(), grouped_matmul, std::ref(ops), weight);
    for (const int64_t m : {1, 8, 64, 512}) {
      for (const int64_t n : {6144, 2048, 3072}) dense->Args({m, n, 2048});
      grouped->Args({m, 3584, 2048})->Args({m, 2048, 1792});
    }
    for (auto* bench : {dense, grouped})
      bench->ArgNames({"m", "n", "k"})->UseManualTime()->Unit(benchmark::kMicrosecond)->MinTime(0.3);
  }
  benchmark::AddCustomContext("simd", simd.name);
  benchmark::AddCustomContext("threads", std::to_string(pool.threads()));
  benchmark::AddCustomContext("blas", openblas_get_config());
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
