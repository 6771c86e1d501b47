// The files of an adapter's folder. adapter_match.cpp finds the weights that its tensors change.
#include "weights-tools/formats/adapter.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checksum.h"
#include "base/error.h"

namespace lfm2 {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;
constexpr size_t kHashedBytes = size_t{1} << 20;
constexpr const char* kConfigName = "adapter_config.json";
constexpr const char* kWeightsName = "adapter_model.safetensors";
constexpr const char* kPickleName = "adapter_model.bin";

std::string checksum_of_file(const CheckedFile& file) {
  Checksum checksum;
  std::vector<std::byte> piece(kHashedBytes);
  for (uint64_t done = 0; done < file.size(); done += piece.size()) {
    piece.resize(std::min<uint64_t>(piece.size(), file.size() - done));
    file.read(done, piece);
    checksum.add(piece);
  }
  return checksum.hex();
}

CheckedFile open_weights(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kWeightsName, error) && fs::exists(folder / kPickleName, error))
    throw Error(ExitCode::kData,
                fmt::format("{}: is a pickle, whose reader would run code from it, expected {}: save the "
                            "adapter again with save_pretrained() of a newer PEFT",
                            (folder / kPickleName).string(), kWeightsName));
  return CheckedFile(folder / kWeightsName);
}

}  // namespace

Adapter::Adapter(const fs::path& folder, const ModelConfig& model) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw Error(ExitCode::kNoInput, fmt::format("--adapter {}: no such folder, expected one with {} and {}",
                                                folder.string(), kConfigName, kWeightsName));
  const fs::path config_path = folder / kConfigName;
  const std::string config_text = read_text_file(config_path, kMaxConfigBytes);
  const AdapterConfig config(config_text, config_path.string());
  file_ = open_weights(folder);
  tensors_ = read_safetensors_header(file_, 0);
  if (tensors_.empty()) file_.refuse("has no tensors, expected those of an adapter");
  updates_ = match_adapter(tensors_, config, model, file_.path().string());
  if (model.tied_embedding) resolve_tied_head(config);
  id_ = {fs::canonical(folder).filename().string(), checksum_of(config_text), checksum_of_file(file_)};
}

bool Adapter::are_equal(const RawTensor& a, const RawTensor& b) const {
  bool equal = a.dtype == b.dtype && a.bytes == b.bytes;
  std::vector<std::byte> a_piece, b_piece;
  for (uint64_t done = 0; equal && done < a.bytes; done += a_piece.size()) {
    a_piece.resize(std::min<uint64_t>(kHashedBytes, a.bytes - done));
    b_piece.resize(a_piece.size());
    file_.read(a.offset + done, a_piece);
    file_.read(b.offset + done, b_piece);
    equal = a_piece == b_piece;
  }
  return equal;
}

// PEFT trains a copy of each module in modules_to_save, so a tied head does not follow an embedding that is trained
// there. Where both are stored and equal, they were still tied.
void Adapter::resolve_tied_head(const AdapterConfig& config) {
  const auto embedding = updates_.find(std::string(kEmbeddingWeight)), head = updates_.find(std::string(kHeadWeight));
  const auto raw = [&](const auto& update) { return tensors_.at(update->second.replacement->tensor); };
  if (head == updates_.end()) {
    unties_head_ = embedding != updates_.end() && config.saves_module("model.embed_tokens");
  } else if (embedding != updates_.end() && embedding->second.replacement && are_equal(raw(embedding), raw(head))) {
    updates_.erase(head);
  } else if (config.saves_module("lm_head")) {
    unties_head_ = true;
  } else {
    file_.refuse(
        fmt::format("tensor {} is another one than the embedding, which the LM head is tied to: expected "
                    "lm_head in modules_to_save",
                    head->second.replacement->tensor));
  }
}

void Adapter::read(const std::string& tensor, uint64_t first, std::span<float> into) const {
  const RawTensor& raw = tensors_.at(tensor);
  const size_t element_bytes = size_bytes(raw.dtype);
  std::vector<std::byte> bytes(into.size() * element_bytes);
  file_.read(raw.offset + first * element_bytes, bytes);
  convert(raw.dtype, bytes.data(), DType::kF32, into.data(), into.size());
}

std::vector<float> Adapter::read(const std::string& tensor) const {
  const RawTensor& raw = tensors_.at(tensor);
  std::vector<float> values(raw.bytes / size_bytes(raw.dtype));
  read(tensor, 0, values);
  return values;
}

}  // namespace lfm2
