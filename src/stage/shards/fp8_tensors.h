// Which tensors of a model may be fp8, and with which scales. Readers of checkpoints and of shards share these checks.
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

// Whether the tensor is the weight of a projection in a layer. Only these are computed in fp8, neither the router nor
// embedding and LM head.
bool may_be_fp8(const TensorSpec& spec);

bool is_scale(const TensorSpec& spec);
std::string scale_name(const std::string& weight);  // "model.layers.0.feed_forward.w1.weight_scale"
// The scales of an fp8 weight: [n, 1] or [ceil(n / 128), ceil(k / 128)]. A device holds them as fp32, whatever their
// type in the file.
TensorSpec scale_spec(const TensorSpec& weight, Quantization::Scheme scheme);

// The number of scales that a device holds for this weight. With scales by block, it holds one for each 8 rows and 128
// columns, or for each row if 8 does not divide the rows. q, k and v, which form one tensor, each count their part.
uint64_t held_scales(const TensorSpec& weight, Quantization::Scheme scheme);

// Error(kData), beginning with `what`, for an fp8 weight if the configuration has no fp8 or excludes its module, or if
// the weight is no projection. `checkpoint_name` may be empty.
void expect_fp8_weight(const TensorSpec& weight, const std::string& checkpoint_name, const Quantization& quantization,
                       const std::string& what);
// Error(kData) for scales whose type is neither fp32 nor bf16, and for those whose shape differs from that of `scale`.
void expect_scale_type(const TensorSpec& scale, DType dtype, const std::string& what);
void expect_scale(const TensorSpec& scale, const std::vector<uint64_t>& dims, DType dtype, const std::string& what);

// Finds weights that are multiplied together but differ in type: the experts of a layer, and w1 and w3 of one
// feed-forward.
class FeedForwardTypes {
 public:
  // Error(kData), beginning with `what`, if this weight is fp8 and an earlier one is not, or the reverse.
  void add(const TensorSpec& weight, DType dtype, const std::string& what);

 private:
  std::map<std::string, std::pair<std::string, bool>> first_;  // the first weight's name, and whether it is fp8
};

// Whether `name` is an accepted alternative to `spec.name` in a checkpoint. Experts may be gate_proj, up_proj and
// down_proj, or one tensor for all of a layer; scales may be weight_scale_inv.
bool is_checkpoint_name(const TensorSpec& spec, std::string_view name);
// Whether a checkpoint's tensor of this name has all experts of a layer, [experts, rows, columns]. Its rows are those
// of w1 followed by w3 (gate_up_proj), or those of w2 (down_proj).
bool holds_all_experts(std::string_view name);

// Finds a scale that is NaN, zero, negative or infinite. Returns it as text, such as "-1 at [3, 0]", or an empty text.
// `first` is the index of the first of the `count` scales in its tensor.
std::string bad_scale(const TensorSpec& scale, DType dtype, uint64_t first, const std::byte* scales, size_t count);

}  // namespace lfm2
