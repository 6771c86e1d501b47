// A routing with memory of its own on the host.
#pragma once

#include "kernels/ops.h"
#include "support/host_tensor.h"

namespace lfm2::test {

struct TestRouting {
  TestRouting(int64_t tokens, int64_t top_k, int64_t experts)
      : ids(DType::kI32, {tokens, top_k}),
        weights(DType::kF32, {tokens, top_k}),
        sources(DType::kI32, {tokens * top_k}),
        rows(DType::kI32, {tokens, top_k}),
        expert_offsets(DType::kI32, {experts + 1}),
        routing{ids, weights, sources, rows, expert_offsets} {}
  HostTensor ids, weights, sources, rows, expert_offsets;
  Routing routing;
};

}  // namespace lfm2::test
