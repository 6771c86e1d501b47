// Which tensors of a model may be fp8, and with which scales. Those who read checkpoints and shards share the checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stage/model/tensor_table.h"

namespace lfm2 {

// Whether the tensor is the weight of a projection in a layer: only those are computed in fp8, neither the router nor
// embedding and LM head.
bool may_be_fp8(const TensorSpec& spec);

bool is_scale(const TensorSpec& spec);
std::string scale_name(const std::string& weight);  // "model.layers.0.feed_forward.w1.weight_scale"
// The scales of a weight that is fp8: [n, 1] or [ceil(n / 128), ceil(k / 128)]. A device holds them as fp32, whatever
// type a file has.
TensorSpec scale_spec(const TensorSpec& weight, Quantization::Scheme scheme);

// How many scales a device holds of this weight: by block one for each eight rows and 128 columns, or, where eight does
// not divide the rows, for each row. Of q, k and v, which are one tensor, that is a part.
uint64_t held_scales(const TensorSpec& weight, Quantization::Scheme scheme);

// Error(kData), beginning with `what`, for an fp8 weight of a configuration without fp8, or that is no projection, or
// whose module the configuration names as one that is not quantised; `checkpoint_name` may be empty.
void expect_fp8_weight(const TensorSpec& weight, const std::string& checkpoint_name, const Quantization& quantization,
                       const std::string& what);
// Error(kData) for scales of another type than fp32 and bf16; and for those of another shape than `scale` has.
void expect_scale_type(const TensorSpec& scale, DType dtype, const std::string& what);
void expect_scale(const TensorSpec& scale, const std::vector<uint64_t>& dims, DType dtype, const std::string& what);

// Finds weights that are multiplied as one but have different types: those of the experts of a layer, and w1 and w3 of
// one feed-forward.
class FeedForwardTypes {
 public:
  // Error(kData), beginning with `what`, where this weight is fp8 and an earlier one is not, or the reverse.
  void add(const TensorSpec& weight, DType dtype, const std::string& what);

 private:
  std::map<std::string, std::pair<std::string, bool>> first_;  // the first weight's name, and whether it is fp8
};

// Whether a checkpoint may call the tensor so where it does not call it `spec.name`: experts are gate_proj, up_proj and
// down_proj, or one tensor for all of a layer; scales are weight_scale_inv.
bool is_checkpoint_name(const TensorSpec& spec, std::string_view name);
// Whether a checkpoint's tensor of this name has all experts of a layer, [experts, rows, columns]: as rows those of w1,
// then those of w3 (gate_up_proj), or those of w2 (down_proj).
bool holds_all_experts(std::string_view name);

// The first of `count` scales that is NaN, zero, negative or infinite, as text: "-1 at [3, 0]". Empty where there is
// none. `first` is the number of the first scale in its tensor.
std::string bad_scale(const TensorSpec& scale, DType dtype, uint64_t first, const std::byte* scales, size_t count);

}  // namespace lfm2
