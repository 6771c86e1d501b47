// Tests the CUDA backend apart from its operators: memory, uploads, stream, events, and that operators can be captured.
#include <cuda.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "cuda/gpu.h"
#include "kernels/cuda/common/cuda_check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_stream.h"

namespace lfm2 {
namespace {

using namespace test;

TEST(CudaDeviceTest, FactsAreThere) {
  const CudaDeviceFacts facts = cuda_device_facts(0);
  EXPECT_FALSE(facts.name.empty());
  EXPECT_EQ(facts.uuid.size(), 40u);
  EXPECT_GE(facts.compute_capability, 80);
  EXPECT_GT(facts.total_bytes, facts.free_bytes / 2);
  EXPECT_FALSE(facts.bus_id.empty());
  std::printf("%s %s %s, %d multiprocessors, %.1f of %.1f GB free; %s\n", facts.name.c_str(), facts.uuid.c_str(),
              facts.bus_id.c_str(), facts.multiprocessors, static_cast<double>(facts.free_bytes) * 1e-9,
              static_cast<double>(facts.total_bytes) * 1e-9, gpu().description().c_str());
  EXPECT_THROW(make_cuda_backend(cuda_device_count()), Error);
}

bool has_context(int device) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  CUDA_CHECK(
      cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 7000, cudaEnableDefault, &result));
  unsigned flags = 0;
  int active = 0;
  const auto state = reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(function);
  EXPECT_EQ(state(device, &flags, &active), CUDA_SUCCESS);
  return active != 0;
}

// In a new process, because this one uses the first GPU.
TEST(CudaDeviceDeathTest, ARankStartsAContextOnItsOwnGpuAlone) {
  const int last = cuda_device_count() - 1;
  if (last == 0) GTEST_SKIP() << "needs two GPUs";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static_cast<void>(cuda_device_facts(last));
        const auto backend = make_cuda_backend(last);
        static_cast<void>(backend->free_bytes());
        std::exit(has_context(last) && !has_context(0) ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(CudaBackendTest, OutOfMemorySaysHowMuch) {
  try {
    gpu().allocate(size_t{1} << 50);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("needs 1125899.907 GB"), std::string::npos) << error.what();
  }
  gpu().compute().check();  // the failed allocation leaves no error behind
}

TEST(CudaBackendTest, UploadsEveryTypeInSeveralPieces) {
  for (const int64_t count : {1, 1000, 4'300'007})
    for (const DType from : kFloatTypes)
      for (const DType to : kFloatTypes) {
        HostTensor source(from, {count}), expected(to, {count}), out(to, {count});
        source.fill_random(1);
        convert(from, source->data, to, expected->data, static_cast<size_t>(count));
        const DeviceTensor target(out);
        const int64_t first = count / 3;
        gpu().upload(target, 0, from, source->data, first);
        gpu().upload(target, first, from, source->data + static_cast<size_t>(first) * size_bytes(from), count - first);
        std::memset(source->data, 0xff, source->bytes());  // the caller may reuse its memory at once
        target.fetch(out);
        EXPECT_TRUE(same_bits(out, expected)) << name(from) << " to " << name(to) << ", " << count;
      }
  HostTensor small(DType::kF32, {2});
  small.fill(0.0);
  const DeviceTensor target(small);
  EXPECT_THROW(gpu().upload(target, 1, DType::kF32, small->data, 2), Error);
}

// Few bytes are copied by a kernel where it reaches both sides, and all others as ever; each leaves its neighbours
// alone.
TEST(CudaBackendTest, CopiesEverySizeFromAndToAnyMemory) {
  constexpr size_t kBytes = 40000, kMargin = 64;
  const Buffer pinned = gpu().allocate_host(kBytes), device = gpu().allocate(kBytes);
  std::vector<std::byte> pageable(kBytes), source(kBytes), out(kBytes);
  for (size_t i = 0; i < kBytes; ++i) source[i] = static_cast<std::byte>(i * 7 + i / 256);
  for (std::byte* const host : {pinned.data(), pageable.data()})
    for (const size_t bytes : {1, 2, 4, 6, 100, 4096, 16380, 16384, 16388, 32768})
      for (const size_t first : {kMargin, kMargin + 2, kMargin + 4}) {
        SCOPED_TRACE(std::to_string(bytes) + " bytes from " + std::to_string(first));
        const auto settle = [] {
          CUDA_CHECK(cudaDeviceSynchronize());  // of cudaMemset, too
          gpu().compute().check();
        };
        const Tensor rows(device.data() + first, DType::kF16, {static_cast<int64_t>(bytes / 2)});
        CUDA_CHECK(cudaMemset(device.data(), 0xee, kBytes));
        std::memcpy(host, source.data(), kBytes);
        settle();
        gpu().copy(gpu().compute(), device.data() + first, host + first, bytes);
        settle();
        CUDA_CHECK(cudaMemcpy(out.data(), device.data(), kBytes, cudaMemcpyDefault));
        for (size_t i = 0; i < kBytes; ++i) {
          const bool inside = i >= first && i < first + bytes;
          ASSERT_EQ(out[i], inside ? source[i] : std::byte{0xee}) << "to the GPU, byte " << i;
        }
        std::memset(host, 0xdd, kBytes);
        gpu().copy_to_host(host + first, rows);
        settle();
        for (size_t i = 0; i < kBytes; ++i) {
          const bool inside = i >= first && i < first + bytes / 2 * 2;
          ASSERT_EQ(host[i], inside ? source[i] : std::byte{0xdd}) << "from the GPU, byte " << i;
        }
      }
}

TEST(CudaBackendTest, UploadIsFast) {
  const size_t bytes = size_t{1} << 30;
  std::vector<std::byte> source(size_t{64} << 20, std::byte{1});
  const Buffer memory = gpu().allocate(bytes);
  const Tensor target(memory.data(), DType::kBf16, {static_cast<int64_t>(bytes / 2)});
  const auto piece = static_cast<int64_t>(source.size() / 2);
  for (const DType from : {DType::kBf16, DType::kF16}) {
    gpu().compute().drain();
    const auto start = std::chrono::steady_clock::now();
    for (int64_t first = 0; first < target.numel(); first += piece)
      gpu().upload(target, first, from, source.data(), piece);
    gpu().compute().drain();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("upload of %s: %.1f GB/s\n", from == DType::kBf16 ? "equal types" : "converted types",
                static_cast<double>(bytes) * 1e-9 / seconds);
  }
}

TEST(CudaStreamTest, EventsOrderStreamsAndCountTheTime) {
  CudaStream other;
  const auto first = gpu().create_event(), second = gpu().create_event();
  EXPECT_TRUE(first->done());  // an event that was never recorded is done
  HostTensor x(DType::kF32, {4096, 2048}), weight(DType::kF32, {2048});
  x.fill_random(1);
  weight.fill(1.0);
  const DeviceTensor device(x), device_weight(weight);
  gpu().compute().pop_finished();
  const double before = steady_seconds();
  for (int i = 0; i < 200; ++i)  // more often than there are timing intervals
    gpu().compute().submit([&] { gpu().ops().rms_norm(device, device_weight, 1e-5f, device); }, i);
  gpu().compute().record(*first);
  other.wait(*first);
  other.record(*second);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!second->done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(second->done());
  EXPECT_TRUE(first->done());
  gpu().compute().drain();
  gpu().compute().check();
  const double after = steady_seconds();
  const std::vector<Span> spans = gpu().compute().pop_finished();
  ASSERT_FALSE(spans.empty());
  double busy = 0, last = before - 1e-3;  // the two clocks differ by less than this
  int64_t tag = -1;
  for (const Span& span : spans) {
    EXPECT_GE(span.start, last - 1e-6);
    EXPECT_GT(span.end, span.start);
    EXPECT_GT(span.tag, tag);
    busy += span.end - span.start;
    last = span.end;
    tag = span.tag;
  }
  EXPECT_LT(last, after + 1e-3);
  EXPECT_GT(busy, 200 * 1e-6);
}

TEST(CudaStreamTest, WhatTheWorkThrowsReachesTheCaller) {
  EXPECT_THROW(gpu().compute().submit([] { throw Error(ExitCode::kIo, "boom"); }), Error);
  gpu().compute().check();  // throws nothing, because the GPU has not failed
  on_gpu([](Ops&) {});
}

TEST(CudaStreamDeathTest, AFaultOfTheGpuIsNamed) {
  // The test runs in a process of its own, because the fault ends its GPU context.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fault = [] {
    HostTensor ids(DType::kI32, {1}), table(DType::kF32, {4, 8}), out(DType::kF32, {1, 8});
    ids.fill({4.0});
    table.fill(1.0);
    const DeviceTensor device_ids(ids), device_table(table), device_out(out);
    on_gpu([&](Ops& ops) { ops.embed(device_ids, device_table, device_out); });
    gpu().compute().drain();
    try {
      gpu().compute().check();
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::_Exit(static_cast<int>(error.code()));
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(fault(), ::testing::ExitedWithCode(70), "a GPU fault: .*work on the GPU");
}

// A mixture of experts and an attention layer are captured as a graph, so nothing in them allocates or waits. The
// replay gives the bits of the plain run.
TEST(CudaStreamTest, OperatorsCanBeCaptured) {
  const int64_t tokens = 96, hidden = 128, experts = 8, top_k = 2, ffn = 64;
  const AttentionShape shape{4, 2, 16};
  const PackedSamples packed({32, 64});
  for (const DType act : {DType::kF32, DType::kBf16}) {
    HostTensor x(act, {tokens, hidden}), norm(act, {hidden}), qkv_w(act, {shape.qkv_columns(), hidden}),
        head_norm(act, {16}), out_w(act, {hidden, 64}), gate(act, {experts, hidden}),
        gate_up_w(act, {experts, 2 * ffn, hidden}), down_w(act, {experts, hidden, ffn});
    for (HostTensor* tensor : {&x, &norm, &qkv_w, &head_norm, &out_w, &gate, &gate_up_w, &down_w})
      tensor->fill_random(1, 0.3f);
    const int64_t rows = tokens * top_k;
    const HostTensor host_normed(act, {tokens, hidden}), host_qkv(act, {tokens, shape.qkv_columns()}),
        host_mixed(act, {tokens, 64}), host_logits(DType::kF32, {tokens, experts}),
        host_ids(DType::kI32, {tokens, top_k}), host_weights(DType::kF32, {tokens, top_k}),
        host_sources(DType::kI32, {rows}), host_offsets(DType::kI32, {experts + 1}), host_sorted(act, {rows, hidden}),
        host_product(act, {rows, ffn}), host_y(act, {rows, hidden});
    const DeviceTensor d_x(x), d_norm(norm), d_qkv_w(qkv_w), d_head_norm(head_norm), d_out_w(out_w), d_gate(gate),
        d_gate_up_w(gate_up_w), d_down_w(down_w), normed(host_normed), qkv(host_qkv), mixed(host_mixed),
        logits(host_logits), ids(host_ids), weights(host_weights), sources(host_sources), sorted_rows(host_ids),
        offsets(host_offsets), sorted(host_sorted), product(host_product), y(host_y);
    const Routing routing{ids, weights, sources, sorted_rows, offsets};
    const auto layer = [&](Ops& ops) {
      ops.rms_norm(d_x, d_norm, 1e-5f, normed);
      ops.matmul(normed, d_qkv_w, {}, qkv, Write::kStore);
      ops.qk_norm_rope(qkv, d_head_norm, d_head_norm, 1e-5f, {1e6f}, shape, packed.device);
      ops.attention(qkv, shape, packed.device, mixed);
      ops.matmul(mixed, d_out_w, {}, d_x, Write::kAdd);
      ops.rms_norm(d_x, d_norm, 1e-5f, normed);
      ops.matmul(normed, d_gate, {}, logits, Write::kStore);
      ops.route(logits, {}, {top_k, true, 1.0f}, routing);
      ops.group_by_expert(routing);
      ops.gather_rows(normed, sources, sorted);
      ops.grouped_swiglu(sorted, d_gate_up_w, offsets, product);
      ops.grouped_matmul(product, d_down_w, offsets, y);
      ops.combine_experts(y, routing, d_x);
    };
    HostTensor plain(act, {tokens, hidden}), replayed(act, {tokens, hidden});
    on_gpu(layer);
    d_x.fetch(plain);
    gpu().upload(d_x, 0, act, x->data, x->numel());
    gpu().compute().drain();

    auto& stream = dynamic_cast<CudaStream&>(gpu().compute());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(stream.native(), cudaStreamCaptureModeGlobal));
    layer(gpu().ops());
    CUDA_CHECK(cudaStreamEndCapture(stream.native(), &graph));
    CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CUDA_CHECK(cudaGraphLaunch(executable, stream.native()));
    d_x.fetch(replayed);
    EXPECT_TRUE(same_bits(replayed, plain)) << name(act);
    CUDA_CHECK(cudaGraphExecDestroy(executable));
    CUDA_CHECK(cudaGraphDestroy(graph));
  }
}

}  // namespace
}  // namespace lfm2
