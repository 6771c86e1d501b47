// Speed of the CPU matrix products at the shapes of LFM2-8B-A1B, beside OpenBLAS in the same run and, for few rows,
// beside a loop that only reads the weights. Weights lie as a run has them, activations have their type. Run by hand;
// LFM2_BENCH_THREADS sets the threads, LFM2_BENCH_SIMD the vector kernels (amx, avx512bf16, avx512, avx2, portable).
#include <benchmark/benchmark.h>
#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
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
  Operands(CpuOps& ops, int64_t rows, int64_t experts, int64_t n, int64_t k, DType type)
      : a_memory(allocate_aligned(static_cast<size_t>(rows * k) * size_bytes(type))),
        w_memory(allocate_aligned(static_cast<size_t>(experts * n * k) * size_bytes(type))),
        out_memory(allocate_aligned(static_cast<size_t>(rows * n) * 4)),
        a(a_memory.data(), type, {rows, k}),
        w(w_memory.data(), type, {experts, n, k}),
        out(out_memory.data(), type, {rows, n}) {
    std::vector<float> values(static_cast<size_t>(std::max(n, rows) * k));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251) * 0x1p-8f - 0.5f;
    convert(DType::kF32, values.data(), type, a.data, static_cast<size_t>(rows * k));
    for (int64_t e = 0; e < experts; ++e)
      convert(DType::kF32, values.data(), type, w.at(e).data, static_cast<size_t>(n * k));
    if (type == DType::kF32) for_blas.assign(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(n * k));
    w = ops.prepacked(w);
    if (w.tiled) ops.prepack(w);
  }
  Buffer a_memory, w_memory, out_memory;
  Tensor a, w, out;
  std::vector<float> for_blas;  // one matrix, in rows: all experts have the same numbers
};

// Reads everything once, a piece at a time.
void read_all(ThreadPool& pool, const Tensor& w) {
  using Words [[gnu::vector_size(16)]] = uint64_t;
  constexpr size_t kPiece = 16384;
  const size_t count = w.bytes() / sizeof(Words);
  const auto* words = w.as<const Words>();
  pool.parallel_for((count + kPiece - 1) / kPiece, [&](size_t piece, size_t) {
    const Words *at = words + piece * kPiece, *end = words + std::min(count, (piece + 1) * kPiece);
    Words a{}, b{}, c{}, d{};  // an array would not be kept in registers
    for (; end - at >= 4; at += 4) {
      a += at[0];
      b += at[1];
      c += at[2];
      d += at[3];
    }
    a += b + c + d;
    benchmark::DoNotOptimize(a);
  });
}

// OpenBLAS's threads look for work for so long, and would be in the way of what comes next.
constexpr auto kBlasSpins = std::chrono::milliseconds(100);

double seconds_of(auto&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The project's products and a loop that only reads take turns, then comes BLAS as often. The shares compare their
// fastest times.
void measure(benchmark::State& state, double flops, double weight_bytes, auto&& ours, const std::function<void()>& blas,
             const std::function<void()>& read) {
  ours();
  double best = 1e9, best_blas = 1e9, best_read = 1e9;
  for (auto _ : state) {
    const double seconds = seconds_of(ours);
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
    if (read) best_read = std::min(best_read, seconds_of(read));
  }
  if (blas) {
    for (auto i = state.iterations(); i > 0; --i) best_blas = std::min(best_blas, seconds_of(blas));
    std::this_thread::sleep_for(kBlasSpins);
  }
  state.counters["GFLOP/s"] = flops / best * 1e-9;
  state.counters["weight_GB/s"] = weight_bytes / best * 1e-9;
  if (blas) state.counters["share_of_blas"] = best_blas / best;
  if (read) state.counters["share_of_read"] = best_read / best;
}

void sgemm(const float* a, const float* w, float* out, int64_t m, int64_t n, int64_t k) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k),
              1.0f, a, static_cast<int>(k), w, static_cast<int>(k), 0.0f, out, static_cast<int>(n));
}

void matmul(benchmark::State& state, CpuOps& ops, ThreadPool& pool, DType type) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const Operands x(ops, m, 1, n, k, type);
  const Tensor w = x.w.at(0);
  std::function<void()> blas, read;
  if (type == DType::kF32) blas = [&] { sgemm(x.a.as<float>(), x.for_blas.data(), x.out.as<float>(), m, n, k); };
  if (m <= 8) read = [&] { read_all(pool, w); };
  measure(
      state, 2.0 * static_cast<double>(m * n * k), static_cast<double>(w.bytes()),
      [&] { ops.matmul(x.a, w, {}, x.out, Write::kStore); }, blas, read);
}

// 32 experts, of which each of `m` tokens uses 4, evenly, as a fair router would choose.
void grouped_matmul(benchmark::State& state, CpuOps& ops, DType type) {
  const int64_t experts = 32, rows = 4 * state.range(0), n = state.range(1), k = state.range(2);
  const Operands x(ops, rows, experts, n, k, type);
  std::vector<int32_t> offsets;
  for (int64_t e = 0; e <= experts; ++e) offsets.push_back(static_cast<int32_t>(rows * e / experts));
  const Tensor expert_offsets(offsets.data(), DType::kI32, {experts + 1});
  std::function<void()> blas;
  if (type == DType::kF32)
    blas = [&] {
      for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
        const int64_t first = offsets[e], count = offsets[e + 1] - first;
        if (count > 0)
          sgemm(x.a.rows(first, count).as<float>(), x.for_blas.data(), x.out.rows(first, count).as<float>(), count, n,
                k);
      }
    };
  const double touched = static_cast<double>(std::min(experts, rows)) / static_cast<double>(experts);
  measure(state, 2.0 * static_cast<double>(rows * n * k), static_cast<double>(x.w.bytes()) * touched,
          [&] { ops.grouped_matmul(x.a, x.w, expert_offsets, x.out); }, blas, {});
}

}  // namespace

int main(int argc, char** argv) {
  const Simd& simd = chosen_simd();
  ThreadPool pool(thread_count(), true);
  CpuOps ops(pool, simd);
  openblas_set_num_threads(thread_count());
  for (const DType type : {DType::kF32, DType::kBf16}) {
    const std::string word(name(type));
    auto* dense = benchmark::RegisterBenchmark(("matmul_" + word).c_str(), matmul, std::ref(ops), std::ref(pool), type);
    auto* grouped = benchmark::RegisterBenchmark(("grouped_" + word).c_str(), grouped_matmul, std::ref(ops), type);
    for (const int64_t m : {1, 8}) dense->Args({m, 65536, 2048});  // the head, which no cache holds
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
