// Puts the parts of a weight together on the host, then copies them to the device.
#include "stage/dspark/dspark_weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "kernels/gate_up.h"
#include "stage/model/tensor_table.h"
#include "stage/shards/overflow.h"

namespace lfm2 {

namespace {

constexpr const char *kTargetEmbedding = "model.embed_tokens.weight", *kTargetHead = "lm_head.weight";
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kNamesInFile = {
    {{"operator_norm.", "input_layernorm."},
     {"ffn_norm.", "post_attention_layernorm."},
     {"q_layernorm.", "q_norm."},
     {"k_layernorm.", "k_norm."},
     {"out_proj.", "o_proj."},
     {"feed_forward.w1.", "mlp.gate_proj."},
     {"feed_forward.w3.", "mlp.up_proj."},
     {"feed_forward.w2.", "mlp.down_proj."},
     {"embedding_norm.", "norm."}}};

bool ends_with_any(const std::string& name, std::initializer_list<std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return name.ends_with(end); });
}

}  // namespace

std::string dspark_name(const std::string& name) {
  constexpr std::string_view kPrefix = "model.";
  std::string own = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
  for (const auto& [model, file] : kNamesInFile)
    if (const size_t at = own.find(model); at != std::string::npos) return own.replace(at, model.size(), file);
  return own;
}

// RoPE of operators turns element i with i + head_dim / 2. Where the drafter turns 2i with 2i + 1, the rows of each
// head come in another order: first the even ones. Queries and keys are reordered alike, so their products stay the
// same.
void DsparkWeights::pair_halves(const std::string& name, Part& part, size_t element_bytes) const {
  if (!files_.config.rope_pairs ||
      !ends_with_any(name, {"q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight"}))
    return;
  const bool is_norm = name.ends_with("norm.weight");
  const int64_t rows = is_norm ? part.columns : part.rows, d = files_.config.blocks.head_dim;
  const size_t row = (is_norm ? 1 : static_cast<size_t>(part.columns)) * element_bytes;
  const std::vector<std::byte> before = part.bytes;
  for (int64_t to = 0; to < rows; ++to) {
    const int64_t in_head = to % d, from = to - in_head + (in_head < d / 2 ? 2 * in_head : 2 * (in_head - d / 2) + 1);
    std::memcpy(part.bytes.data() + static_cast<size_t>(to) * row, before.data() + static_cast<size_t>(from) * row,
                row);
  }
}

DsparkWeights::Part DsparkWeights::read(const std::string& name, DType held) const {
  const RawTensor& raw = files_.tensors.at(name);
  const auto count = static_cast<size_t>(numel(raw.dims));
  std::vector<std::byte> stored(raw.bytes);
  files_.weights.read(raw.offset, stored);
  const TensorSpec spec{.name = name, .dims = raw.dims};
  if (const auto overflow = find_overflow(spec, raw.dtype, held, 0, stored.data(), count))
    files_.weights.refuse(*overflow);
  Part part{.bytes = {},
            .rows = raw.dims.size() == 1 ? 1 : static_cast<int64_t>(raw.dims[0]),
            .columns = static_cast<int64_t>(raw.dims.back())};
  if (raw.dtype == held) {
    part.bytes = std::move(stored);
  } else {
    part.bytes.resize(count * size_bytes(held));
    convert(raw.dtype, stored.data(), held, part.bytes.data(), count);
  }
  pair_halves(name, part, size_bytes(held));
  return part;
}

Tensor DsparkWeights::load(const std::vector<std::string>& names, std::initializer_list<int64_t> dims, Rows rows) {
  if (names.front() == kTargetEmbedding) return embedding_;
  if (names.front() == kTargetHead) return head_;
  std::vector<std::string> own;
  for (const std::string& name : names) {
    own.push_back(dspark_name(name));
    expect(files_.tensors.contains(own.back()), "DsparkWeights: a weight that drafters do not have");
  }
  const auto held_type = [&](const std::string& name) { return held_dtype(files_.tensors.at(name).dtype, compute_); };
  DType held = held_type(own.front());
  for (const std::string& name : own)
    if (held_type(name) != held) held = DType::kF32;  // holds each exactly
  const Tensor tensor = memory_.allocate(held, dims);
  const size_t row_bytes = static_cast<size_t>(tensor.k()) * size_bytes(held);
  std::vector<std::byte> whole(tensor.bytes());  // zeros where a feed-forward is padded
  int64_t first = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    const Part part = read(own[i], held);
    const size_t bytes = static_cast<size_t>(part.columns) * size_bytes(held);
    for (int64_t row = 0; row < part.rows; ++row) {
      const int64_t to = rows == Rows::kBehindOneAnother
                             ? first + row
                             : (2 * (row / kGateUpBlock) + static_cast<int64_t>(i)) * kGateUpBlock + row % kGateUpBlock;
      std::memcpy(whole.data() + static_cast<size_t>(to) * row_bytes,
                  part.bytes.data() + static_cast<size_t>(row) * bytes, bytes);
    }
    first += part.rows;
  }
  backend_.upload(tensor, 0, held, whole.data(), tensor.numel());
  return tensor;
}

Tensor DsparkWeights::load_for_products(const std::vector<std::string>& names, std::initializer_list<int64_t> dims,
                                        Rows rows) {
  Tensor tensor = load(names, dims, rows);
  if (tensor.tiled || names.front() == kTargetEmbedding || names.front() == kTargetHead) return tensor;
  tensor = backend_.prepacked(tensor);
  if (tensor.tiled) tiled_.push_back(tensor);
  return tensor;
}

void DsparkWeights::finish() {
  backend_.prepack(tiled_);
  tiled_.clear();
}

}  // namespace lfm2
