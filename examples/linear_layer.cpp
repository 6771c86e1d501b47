// The C++ API: y = silu(x wᵀ + bias) for stored weights [out, in]; the transposed operand is a view, nothing is copied.
#include <cstdio>
#include <utility>
#include <vector>

#include "operators/bias.h"
#include "operators/matmul.h"

using namespace lfm2;
using namespace lfm2::operators;

int main() {
  constexpr int64_t kTokens = 3, kIn = 4, kOut = 2;
  std::vector<float> x(kTokens * kIn), w(kOut * kIn), shift(kOut), y(kTokens * kOut);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) / 10;
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 3) - 1;
  shift = {0.5f, -0.5f};

  TensorView weights(w.data(), DType::kF32, {kOut, kIn});
  std::swap(weights.dims[0], weights.dims[1]);  // [in, out]
  std::swap(weights.strides[0], weights.strides[1]);
  const TensorView input(x.data(), DType::kF32, {kTokens, kIn}), output(y.data(), DType::kF32, {kTokens, kOut});
  Status status = matmul(input, weights, output, nullptr);
  if (ok(status)) status = bias(output, {shift.data(), DType::kF32, {kOut}}, output, {}, Activation::kSilu, nullptr);
  if (!ok(status)) {
    std::fprintf(stderr, "linear_layer: %s\n", status_text(status));
    return 1;
  }
  for (int64_t token = 0; token < kTokens; ++token)
    std::printf("token %lld: %8.4f %8.4f\n", static_cast<long long>(token),
                static_cast<double>(y[static_cast<size_t>(token * kOut)]),
                static_cast<double>(y[static_cast<size_t>(token * kOut + 1)]));
  return 0;
}
