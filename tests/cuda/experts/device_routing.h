// Routings on the GPU, and their comparison. For the tests of operators that choose or use experts.
#pragma once

#include <cstring>
#include <string>

#include "cuda/gpu.h"
#include "support/test_routing.h"

namespace lfm2::test {

// A copy of a host's routing.
struct DeviceRouting {
  explicit DeviceRouting(const TestRouting& host)
      : ids(host.ids),
        weights(host.weights),
        sources(host.sources),
        rows(host.rows),
        expert_offsets(host.expert_offsets),
        routing{ids, weights, sources, rows, expert_offsets} {}
  void fetch(const TestRouting& into) const {
    ids.fetch(into.ids);
    weights.fetch(into.weights);
    sources.fetch(into.sources);
    rows.fetch(into.rows);
    expert_offsets.fetch(into.expert_offsets);
  }
  DeviceTensor ids, weights, sources, rows, expert_offsets;
  Routing routing;
};

// The routing that the specification sorts by expert from a choice of experts.
inline TestRouting grouped(const Tensor& ids, const Tensor& weights, int64_t experts) {
  TestRouting result(ids.dim(0), ids.dim(1), experts);
  std::memcpy(result.ids->data, ids.data, ids.bytes());
  std::memcpy(result.weights->data, weights.data, weights.bytes());
  const reference::Groups groups = reference::group_by_expert(ids, experts);
  result.sources.fill(groups.sources);
  result.rows.fill(groups.rows);
  result.expert_offsets.fill(groups.expert_offsets);
  return result;
}

// What of two routings has other bits; empty where they are the same.
inline std::string difference(const Routing& a, const Routing& b) {
  std::string parts;
  const auto compare = [&](const char* name, const Tensor& of_a, const Tensor& of_b) {
    if (!same_bits(of_a, of_b)) parts += (parts.empty() ? "" : ", ") + std::string(name);
  };
  compare("ids", a.ids, b.ids);
  compare("weights", a.weights, b.weights);
  compare("sources", a.sources, b.sources);
  compare("rows", a.rows, b.rows);
  compare("expert_offsets", a.expert_offsets, b.expert_offsets);
  return parts;
}

}  // namespace lfm2::test
